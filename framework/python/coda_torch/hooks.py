"""Where torch is joined: before a backward pass, after an optimizer's step, and after gradients are cleared."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable


def put_into(
    torch: Any,
    *,
    backward_begins: Callable[[], None],
    stepped: Callable[[Any], None],
    gradients_gone: Callable[[], None],
) -> None:
    """Call these from then on. None of them may raise.

    backward_begins: also of one inside another; gradients_gone: by an optimizer, or a module"""
    from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook  # type: ignore[import-not-found]

    register_optimizer_step_post_hook(lambda optimizer, _values, _named: stepped(optimizer))
    plain_zero_grad, plain_backward = Optimizer.zero_grad, torch.autograd.backward
    plain_clearing = torch.nn.Module.zero_grad
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)

    @functools.wraps(plain_zero_grad)
    def zero_grad(optimizer: Any, *values: Any, **named: Any) -> Any:
        done = plain_zero_grad(optimizer, *values, **named)
        gradients_gone()
        return done

    @functools.wraps(plain_clearing)
    def clear(module: Any, *values: Any, **named: Any) -> Any:  # `torch.compile` may go through it
        done = plain_clearing(module, *values, **named)
        if not is_compiling():
            gradients_gone()
        return done

    @functools.wraps(plain_backward)
    def backward(*values: Any, **named: Any) -> Any:  # `Tensor.backward` calls it, too
        backward_begins()
        return plain_backward(*values, **named)

    for one in (zero_grad, backward):
        one._torchdynamo_disable = True  # type: ignore[attr-defined]  # as torch's own
    Optimizer.zero_grad = zero_grad
    torch.nn.Module.zero_grad = clear
    torch.autograd.backward = backward
    _tell_torch_script(backward)


def _tell_torch_script(backward: Any) -> None:
    """It knows the functions of torch by their identity."""
    with contextlib.suppress(ImportError):  # a private place, which may move
        from torch.jit._builtins import _register_builtin  # type: ignore[import-not-found]

        _register_builtin(backward, "aten::backward")
