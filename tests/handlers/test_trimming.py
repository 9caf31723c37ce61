from coda_operator.trimming import WORTH_TRIMMING, Tide


def test_memory_is_looked_for_once_after_each_burst() -> None:
    tide = Tide()
    assert not tide.has_fallen(100_000)
    assert not tide.has_fallen(100_000 + WORTH_TRIMMING), "it still comes"
    assert tide.has_fallen(100_000)
    assert not tide.has_fallen(100_000), "it is given back already"
    assert not tide.has_fallen(100_000 + WORTH_TRIMMING)
    assert tide.has_fallen(100_000)


def test_small_changes_add_up() -> None:
    tide = Tide()
    falls = [tide.has_fallen(count) for count in range(10 * WORTH_TRIMMING, 0, -WORTH_TRIMMING // 10)]
    assert falls.count(True) == 9
