"""Slots for webhooks, shared out among tenants, their destinations and servers."""

from collections import Counter, deque
from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st

from jobs.webhooks.fairness import SHARE, DueDestination, Slots, share_out


def waiting(tenant: UUID, *, due: int, room: int = 8, server: UUID | None = None) -> DueDestination:
    return DueDestination(uuid4(), tenant, server or uuid4(), room, deque(uuid4() for _ in range(due)))


def test_one_tenant_leaves_a_quarter_and_the_next_ones_leave_some() -> None:
    tenants = [uuid4() for _ in range(4)]
    held: Counter[UUID] = Counter()
    left = []
    for tenant in tenants:
        one = [waiting(tenant, due=8) for _ in range(256)]
        slots = Slots(256 - held.total(), held)
        held[tenant] += len(share_out(one, slots, {each.server_id: 16 for each in one}))
        left.append(256 - held.total())
    assert left[0] == 64
    assert left == sorted(left, reverse=True)
    assert all(left), "whoever comes next finds a slot"


TENANTS = [UUID(int=number) for number in range(4)]
SERVERS = [UUID(int=number) for number in range(10, 14)]


@given(
    st.lists(
        st.tuples(st.sampled_from(TENANTS), st.sampled_from(SERVERS), st.integers(0, 8), st.integers(0, 8)),
        max_size=12,
    ),
    st.integers(0, 64),
    st.dictionaries(st.sampled_from(TENANTS), st.integers(0, 64)),
    st.fixed_dictionaries({each: st.integers(-2, 16) for each in SERVERS}),
)
def test_no_slot_is_given_twice_and_none_is_kept_from_who_may_have_it(
    asked: list[tuple[UUID, UUID, int, int]], num_free: int, held: dict[UUID, int], room: dict[UUID, int]
) -> None:
    waits = [waiting(tenant, due=due, room=least, server=server) for tenant, server, due, least in asked]
    before = {each.id: (list(each.due), each.room) for each in waits}
    left = dict(room)
    got = share_out(waits, Slots(num_free, held), left)
    assert len(set(got)) == len(got) <= num_free
    still_free = num_free - len(got)
    holds = Counter(held)
    for each in waits:
        taken = before[each.id][0][: len(before[each.id][0]) - len(each.due)]
        assert len(taken) <= before[each.id][1], "a destination has so much room"
        assert set(taken) <= set(got)
        holds[each.tenant_id] += len(taken)
    assert all(left[each] >= min(0, room[each]) for each in SERVERS), "and so has a server"
    for each in waits:
        could = each.due and each.room > 0 and left[each.server_id] > 0
        assert not could or holds[each.tenant_id] >= SHARE * still_free


def test_tenants_take_turns() -> None:
    many, few = uuid4(), uuid4()
    of_many, of_few = waiting(many, due=8), waiting(few, due=2)
    first = set(of_few.due)
    got = share_out([of_many, of_few], Slots(40), {of_many.server_id: 16, of_few.server_id: 16})
    assert [each in first for each in got[:4]] == [False, True, False, True]
