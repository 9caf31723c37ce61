"""The page: sections are replaced, everything else stays."""

import pytest

from coda.errors import InvalidInput
from studies.page import BEGIN, END, check_page, with_sections

ORDER = ("traces", "month")
FRAME = f"# Results\n\nText.\n\n{BEGIN}\n{END}\n\nOld.\n"


def test_a_section_is_replaced_and_the_others_stay_in_order() -> None:
    first = with_sections(FRAME, {"month": "ten seeds"}, ORDER)
    both = with_sections(first, {"traces": "a\n\nb"}, ORDER)
    assert both.index("<!-- table traces -->\na\n\nb\n") < both.index("<!-- table month -->\nten seeds\n")
    again = with_sections(both, {"month": "other seeds"}, ORDER)
    assert "ten seeds" not in again
    assert "a\n\nb" in again
    assert again.startswith("# Results\n\nText.\n\n")
    assert again.endswith(f"{END}\n\nOld.\n")
    assert with_sections(again, {"month": "other seeds"}, ORDER) == again


@pytest.mark.parametrize("page", ["", BEGIN, END, f"{END} {BEGIN}", f"{BEGIN} {BEGIN} {END}", f"{BEGIN} {END} {END}"])
def test_without_its_markers_a_page_is_refused_in_one_sentence(page: str) -> None:
    with pytest.raises(InvalidInput, match=r"^the page needs the lines .* once each and in this order$"):
        check_page(page)
