from collections import Counter
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from jobs.scheduling.fair_share import Account, charge, lift, rank

backlogs = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(1, 100), min_size=1, max_size=30))
weights = st.floats(0.1, 10)


@given(backlogs, st.integers(0, 40))
def test_the_ranking_keeps_every_tenants_own_order(queues: dict[str, list[int]], limit: int) -> None:
    named = {tenant: [(tenant, place) for place in range(len(jobs))] for tenant, jobs in queues.items()}
    accounts = {tenant: Account() for tenant in queues}
    ranked = rank(named, accounts, num_tokens=lambda job: queues[job[0]][job[1]], limit=limit)
    assert len(ranked) == min(limit, sum(map(len, queues.values())))
    for tenant in queues:
        places = [place for owner, place in ranked if owner == tenant]
        assert places == list(range(len(places)))


@given(weights, weights, st.lists(st.integers(1, 100), min_size=200, max_size=200))
def test_served_tokens_follow_the_weights_whatever_the_sizes(
    one: float, two: float, sizes: list[int]
) -> None:
    accounts = {"one": Account(one), "two": Account(two)}
    queues = {
        name: [(name, size) for size in some] for name, some in (("one", sizes[:100]), ("two", sizes[100:]))
    }
    while all(queues.values()):
        tenant, size = rank(queues, accounts, num_tokens=lambda job: job[1], limit=1)[0]
        assert queues[tenant].pop(0) == (tenant, size)
        accounts[tenant] = charge(accounts[tenant], size)
        apart = abs(accounts["one"].served - accounts["two"].served)
        assert apart <= (100 / one + 100 / two) / 2 * (1 + 1e-9)


def test_a_tenant_with_ten_times_the_backlog_gets_no_more_of_the_window() -> None:
    queues = {"large": [("large", 5)] * 1000, "small": [("small", 5)] * 100}
    ranked = rank(queues, {"large": Account(), "small": Account()}, num_tokens=lambda job: job[1], limit=100)
    assert Counter(owner for owner, _ in ranked) == {"large": 50, "small": 50}


def test_idleness_earns_no_credit_and_costs_none() -> None:
    busy = [Account(served=500), Account(served=800)]
    assert lift(Account(served=10), busy).served == 500
    assert lift(Account(served=600), busy).served == 600
    assert lift(Account(served=10), []).served == 10


def test_settling_gives_back_what_was_predicted_too_much() -> None:
    claimed = charge(Account(weight=2), 3000)
    assert charge(claimed, -1000) == charge(Account(weight=2), 2000)


def test_a_window_shows_tenants_in_proportion_to_their_weights() -> None:
    queues = {"one": [1] * 100, "three": [1] * 100}
    named = {tenant: [(tenant, job) for job in jobs] for tenant, jobs in queues.items()}
    accounts = {"one": Account(1), "three": Account(3)}
    ranked = rank(named, accounts, num_tokens=lambda job: job[1], limit=80)
    assert Counter(owner for owner, _ in islice(ranked, 80)) == {"one": 20, "three": 60}
