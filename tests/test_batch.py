"Batches: rules and their messages, cuts against loops that read as the definitions do; spec 10, section 6"
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from conftest import data
from llamaref.context.batch import (Batch, check_batch, check_outputs, output_row, output_slots,
                                    outputs_needed, split_equal, split_seq, split_simple)
from llamaref.errors import ContextError

HELD = {0: (0, 5), 1: (0, 5), 2: (2, 5), 3: (-1, -1)}      # first and last position in memory

def check(batch, held=HELD, **kw):
    return check_batch(batch, 512, len(held), lambda s: held[s][1], lambda s: held[s][0], **kw)

# what is refused, and the words that say why

REFUSED = [
    ('empty', Batch([]), {}, 'it is empty'),
    ('too long', Batch([1] * 9), dict(n_batch=8), '9 rows, but n_batch is 8'),
    ('non-causal', Batch([1] * 9), dict(n_ubatch=8), '9 rows, but n_ubatch is 8 and a non-causal'),
    ('token too large', Batch([3, 512]), {}, r'token 512 at row 1 is not in \[0, 512\)'),
    ('token negative', Batch([-1]), {}, r'token -1 at row 0 is not in \[0, 512\)'),
    ('token no integer', Batch([1, 'a']), {}, "token 'a' at row 1 is not a 32-bit integer"),
    ('token huge', Batch([2**63]), {}, 'token 9223372036854775808 at row 0 is not a 32-bit integer'),
    ('id too large', Batch([1, 1], seq_id=[0, 4]), {}, r'seq_id 4 at row 1 is not in \[0, 4\)'),
    ('id negative', Batch([1], seq_id=-1), {}, r'seq_id -1 at row 0 is not in \[0, 4\)'),
    ('no id', Batch([1, 1], seq_id=[0, []]), {}, 'row 1 belongs to no sequence'),
    ('position negative', Batch([1], [-1], 3), {}, 'position -1 at row 0 is not in'),
    ('position too large', Batch([1], [2**31 - 1], 3), {}, 'position 2147483647 at row 0 is not in'),
    ('gap to the memory', Batch([1], [8]), {}, 'position 8 at row 0 does not continue: the memory ends at 5'),
    ('repeat of the memory', Batch([1], [5]), {}, 'the memory ends at 5, so it must be 6'),
    ('gap in the batch', Batch([1, 1], [6, 8]), {}, '8 at row 1 does not continue: row 0 has 6, so it'),
    ('repeat in the batch', Batch([1, 1], [6, 6]), {}, 'row 0 has 6, so it must be 7'),
    ('decreasing', Batch([1, 1], [7, 6], 3), {}, 'position 6 at row 1 decreases: row 0 has 7'),
    ('other rows between', Batch([1] * 3, [6, 0, 8], [0, 3, 0]), {}, 'sequence 0, position 8 at row 2'),
    ('shared, other first', Batch([1], seq_id=[(1, 2)]), {},
     r'row 0 is shared by sequences 1 and 2.*\(0, 5\).*\(2, 5\)'),
    ('shared with an empty one', Batch([1], seq_id=[(0, 3)]), {}, 'row 0 is shared by sequences 0 and 3'),
    ('partial overlap', Batch([1, 1], seq_id=[(0, 1), (1, 2)]), {},
     r'row 1 belongs to sequences \(1, 2\), but row 0 to \(0, 1\)'),
    ('parted and met', Batch([1] * 4, [6, 7, 7, 8], [(0, 1), 0, 1, (0, 1)]), {},
     'sequence 0 cannot share with others'),
    ('outputs', Batch([1] * 5, logits='all'), dict(n_outputs_max=4), '5 rows want logits, but n_outputs_max'),
    ('outputs of embeddings', Batch([1] * 5), dict(n_outputs_max=4, embeddings=True), '5 rows want logits'),
    ('lengths', Batch([1, 2], [6]), {}, '2 rows, but 1 entries in pos'),
    ('flags', Batch([1, 2], logits=[1]), {}, '2 rows, but 1 entries in logits'),
    ('ids', Batch([1, 2], seq_id=[0]), {}, '2 rows, but 1 entries in seqs'),
    ('embeddings', Batch([1, 2], embd=np.zeros((3, 4))), {}, '2 rows, but 3 entries in embd')]

@pytest.mark.parametrize('batch,kw,say', [pytest.param(*r[1:], id=r[0]) for r in REFUSED])
def test_refused(batch, kw, say):
    with pytest.raises(ContextError, match=say) as e: check(batch, **kw)
    assert e.value.code == -1

def test_messages_are_distinct(): assert len({say for *_, say in REFUSED}) == len(REFUSED)

@pytest.mark.parametrize('kw', [dict(logits='some'), dict(seq_id=[1.5]), dict(seq_id=[None])])
def test_refused_at_once(kw):
    with pytest.raises(ContextError) as e: Batch([1], **kw)
    assert e.value.code == -1

@pytest.mark.parametrize('batch,pos', [
    (Batch([1, 2]), [6, 7]), (Batch([1], [100], 3), [100]), (Batch([1, 2], seq_id=3), [0, 1]),
    (Batch([1] * 4, seq_id=[0, 3, 0, 3]), [6, 0, 7, 1]),
    (Batch([1] * 4, seq_id=[(0, 1), (1, 0), 0, 1]), [6, 7, 8, 8]),
    (Batch([1] * 3, [6, None, 6], [0, 0, 1]), [6, 7, 6]),
    (Batch(np.array([1, 2], np.int64), np.array([6, 7]), np.int64(0)), [6, 7]),
    (Batch([1], seq_id=[[0, 0, 1]]), [6])])
def test_accepted(batch, pos):
    rows = check(batch)
    assert rows.pos.tolist() == pos and rows.pos.dtype == rows.tokens.dtype == rows.rows.dtype == np.int32
    assert rows.out.dtype == bool and rows.rows.tolist() == [*range(len(batch))]

@pytest.mark.parametrize('batch,ok', [
    (Batch([1, 1], [6, 20]), True), (Batch([1, 1], [9, 9]), True), (Batch([1], [5]), False),
    (Batch([1, 1], [9, 8]), False),
    (Batch(None, [5, 5], embd=np.zeros((2, 4))), True), (Batch(None, [4], embd=np.zeros((1, 4))), False)])
def test_jumping_positions(batch, ok):
    if ok: check(batch, jumps=True)
    else:
        with pytest.raises(ContextError, match='or more'): check(batch, jumps=True)

def test_embedding_rows_have_no_tokens():
    rows = check(Batch(None, embd=np.ones((3, 8)), logits='all'))
    assert rows.tokens is None and rows.embd.dtype == np.float32 and rows.pos.tolist() == [6, 7, 8]
    assert [u.embd.shape for u in split_simple(rows, 2)] == [(2, 8), (1, 8)]

def test_embeddings_make_every_row_an_output(): assert check(Batch([1, 2, 3]), embeddings=True).out.all()

def test_device_samplers_limit_a_sequence():
    rows = check(Batch([1] * 4, seq_id=[0, 0, 3, 3], logits=[1, 1, 1, 0]))
    check_outputs(rows, 3, 1, sampled=[3])
    with pytest.raises(ContextError, match=r'at most 1 outputs per sequence \(seq_id 0 had 2\)'):
        check_outputs(rows, 3, 1, sampled=[0, 3])

def test_a_refused_batch_is_left_as_it_was():
    b = Batch([1, 2], seq_id=[0, 9])
    with pytest.raises(ContextError): check(b)
    assert b.pos == [None, None] and b.tokens == [1, 2]

# the cuts

@st.composite
def batches(draw):
    "Positions that follow the rules, of up to three sequences and at times a shared start of two"
    shared = draw(st.integers(0, 3))
    b, after = Batch([]), [0, 0, 0]
    for _ in range(shared): b.add(0, after[0], [0, 1]); after[0] += 1; after[1] += 1
    for s in draw(st.lists(st.integers(0, 2), max_size=24)): b.add(0, after[s], s); after[s] += 1
    assume(len(b))
    return b

def parts(pieces): return [Counter(u.seqs) for u in pieces]

def whole_and_in_order(b, pieces, n_ubatch):
    assert sorted(np.concatenate([u.rows for u in pieces]).tolist()) == [*range(len(b))]
    assert all(0 < len(u) <= n_ubatch for u in pieces)
    for s in range(3):
        seen = [p for u in pieces for ids, p in zip(u.seqs, u.pos.tolist()) if s in ids]
        assert seen == sorted(seen)
    for u in pieces:
        assert [b.pos[r] for r in u.rows] == u.pos.tolist() and [b.seqs[r] for r in u.rows] == u.seqs

@settings(max_examples=100, deadline=None)
@given(batches(), st.integers(1, 9))
def test_simple_is_consecutive(b, n):
    pieces = split_simple(b, n)
    whole_and_in_order(b, pieces, n)
    assert [r for u in pieces for r in u.rows] == [*range(len(b))] and {len(u) for u in pieces[:-1]} <= {n}

def equal_by_loops(b, n_ubatch):
    "The equal split as its definition reads, one row at a time"
    left, out = list(range(len(b))), []
    while left:
        picked = []
        for r in left:
            apart = not any(set(b.seqs[r]) & set(p) for p in picked)
            if apart and len(picked) < n_ubatch: picked.append(b.seqs[r])
        lists = {p: [] for p in picked}
        while True:
            nxt = {p: [r for r in left if b.seqs[r] == p and r not in lists[p]] for p in picked}
            if not all(nxt.values()): break
            for p in picked: lists[p].append(nxt[p][0])
            if (len(lists[picked[0]]) + 1) * len(picked) > n_ubatch: break
        rows = [r for p in picked for r in lists[p]]
        out.append(rows); left = [r for r in left if r not in rows]
    return out

@settings(max_examples=150, deadline=None)
@given(batches(), st.integers(1, 9))
def test_equal_is_the_loop_of_its_definition(b, n):
    pieces = split_equal(b, n)
    whole_and_in_order(b, pieces, n)
    assert [u.rows.tolist() for u in pieces] == equal_by_loops(b, n)
    for count in parts(pieces): assert len(set(count.values())) == 1

@settings(max_examples=150, deadline=None)
@given(batches(), st.integers(2, 9), st.integers(1, 5))
def test_no_rest_is_shorter_than_a_tail(b, n, tail):
    assume(tail < n)
    pieces = split_equal(b, n, tail)
    whole_and_in_order(b, pieces, n)
    left = Counter(b.seqs)
    for count in parts(pieces):
        left -= count
        assert all(left[ids] == 0 or left[ids] >= tail for ids in count)
        assert len(set(count.values())) == 1

@settings(max_examples=80, deadline=None)
@given(batches(), st.integers(1, 9))
def test_seq_has_one_set_a_piece(b, n):
    pieces = split_seq(b, n)
    whole_and_in_order(b, pieces, n)
    assert all(len(c) == 1 for c in parts(pieces))

def two(n0=10, n1=10): return Batch([0] * (n0 + n1), [*range(n0), *range(n1)], [0] * n0 + [1] * n1)
def counts(pieces): return [[c[(0,)], c[(1,)]] for c in parts(pieces)]

def test_acceptance_6_equal(): assert counts(split_equal(two(), 8)) == [[4, 4], [4, 4], [2, 2]]
def test_acceptance_6_tail(): assert counts(split_equal(two(), 8, n_keep_tail=3)) == [[4, 4], [6, 0], [0, 6]]

@pytest.mark.parametrize('n0,n1,n,tail,want', [
    (10, 10, 8, 1, [[4, 4], [4, 4], [2, 2]]),       # a tail of one is no rule
    (4, 9, 8, 3, [[4, 4], [0, 5]]),                 # nothing left of 0, five of 1
    (7, 5, 8, 3, [[4, 0], [3, 0], [0, 5]]),         # four each leave 1 of seq 1, three each leave 2
    (9, 0, 8, 3, [[6, 0], [3, 0]]),                 # eight would leave one: give two back
    (11, 0, 8, 3, [[8, 0], [3, 0]])])
def test_tails_by_hand(n0, n1, n, tail, want):
    assert counts(split_equal(two(n0, n1), n, tail)) == want

def test_streams_need_consecutive_ids():
    b = Batch([0] * 6, [0, 1] * 3, [0, 0, 2, 2, 1, 1])
    ids = lambda pieces: [[s[0] for s in dict.fromkeys(u.seqs)] for u in pieces]
    assert ids(split_equal(b, 6)) == [[0, 2, 1]]
    assert ids(split_equal(b, 6, sequential=True)) == [[0, 1], [2]]
    with pytest.raises(ContextError, match='kv_unified'):
        split_equal(Batch([0], [0], [(0, 1)]), 4, sequential=True)

@pytest.mark.parametrize('cut,args', [(split_equal, (3, 3)), (split_simple, (0,)), (split_seq, (-1,))])
def test_cuts_that_cannot_be(cut, args):
    with pytest.raises(ContextError, match='n_ubatch is'): cut(two(), *args)

# outputs

def test_acceptance_6_outputs():
    flags = np.array([0, 0, 1, 0, 1], bool)
    assert [output_row(flags, i) for i in (2, 4, -1, -2)] == [0, 1, 1, 0]
    for i, say in ((0, r'batch\.logits\[0\] != true'), (3, r'batch\.logits\[3\] != true'),
                   (5, 'the batch had 5'), (-3, 'there are 2')):
        with pytest.raises(ContextError, match=say) as e: output_row(flags, i)
        assert e.value.code == -1

@settings(max_examples=60, deadline=None)
@given(batches(), st.integers(1, 9), st.data())
def test_outputs_return_to_the_callers_order(b, n, draw):
    b.logits = draw.draw(st.lists(st.booleans(), min_size=len(b), max_size=len(b)))
    rows = b.freeze()
    got = np.full(rows.out.sum(), -1)
    for u in split_equal(rows, n): got[output_slots(rows.out, u)] = u.rows[u.out]
    assert got.tolist() == np.flatnonzero(rows.out).tolist()
    assert [output_row(rows.out, int(i)) for i in got] == [*range(len(got))]

def test_acceptance_6_reservation():
    n, each = outputs_needed(n_batch=2048, n_parallel=4)
    assert (n * 262144 * 4, each) == (4 * 2**20, 1)
    assert [outputs_needed(*a) for a in ((2048, 4, 3), (8, 4, 3), (0, 1))] == [(16, 4), (8, 4), (1, 1)]

def test_starts_are_the_first_positions():
    rows = check(Batch([1] * 5, seq_id=[(0, 1), 0, 3, 1, 3]))
    assert rows.starts() == {0: 6, 1: 6, 3: 0}
    assert rows.take(np.array([1, 4])).starts() == {0: 7, 3: 1}

# the peer's verdicts

def test_the_peer_agrees_on_what_is_valid():
    doc = json.loads(data('golden', 'memory.json').read_text())
    s = next(s for s in doc['scenarios'] if s['name'] == 'attn_invalid')
    held = {0: (-1, -1), 1: (-1, -1)}
    for step in s['steps']:
        code = 0
        try: check(Batch(step['tokens'], step['pos'], step['seq'], step['output']), held)
        except ContextError as e: code = e.code
        assert code == step['returns'], step
        held = dict(enumerate(map(tuple, step['ranges'])))
