"""How the time that a plan saves is said, by account."""

from fuseledger.planner.compare import saved_words


def test_parts_add_up_to_what_is_saved():
    """Every account is a term, gains first."""
    split = {"traffic": 524.31, "launches": 15.0, "compute": -4.19}
    words = "saves 535.12 µs against [1,3]: traffic 524.31 + launches 15.00 − compute 4.19"
    assert saved_words(535.12, split, "[1,3]") == words


def test_a_change_of_the_slowest_resource_is_no_saving():
    """207 µs of compute that become 148 µs of traffic are 59 µs saved, not 207."""
    split = {"traffic": -148.0, "launches": 7.0, "compute": 207.0}
    words = "saves 66.00 µs against [1,3]: traffic and compute 59.00 + launches 7.00"
    assert saved_words(66.0, split, "[1,3]") == words


def test_a_slower_plan_loses():
    """The parts of a loss are losses."""
    assert saved_words(-2.0, {"traffic": -2.0}, "[4]") == "loses 2.00 µs against [4]: traffic 2.00"
