"""What lasts is logged at once, and then every ten minutes."""

from coda_kube.say_again import SAY_AGAIN_S, SayAgain


def test_what_lasts_is_said_at_once_and_then_now_and_then() -> None:
    now_s = [0.0]
    fault = SayAgain(lambda: now_s[0])
    said = []
    for _ in range(121):
        if fault.is_due("away"):
            said.append(now_s[0])
        now_s[0] += 30.0
    assert said == [SAY_AGAIN_S * turn for turn in range(7)]


def test_other_words_are_said_at_once_and_so_is_what_begins_anew() -> None:
    fault = SayAgain(lambda: 0.0)
    assert (fault.is_due("away"), fault.is_due("away"), fault.is_due("full")) == (True, False, True)
    fault.end()
    assert (fault.is_due("full"), fault.is_due("full")) == (True, False)


def test_a_clock_that_goes_back_silences_nothing() -> None:
    now_s = [1e9]
    fault = SayAgain(lambda: now_s[0])
    assert fault.is_due()
    now_s[0] = 5.0
    assert fault.is_due()
