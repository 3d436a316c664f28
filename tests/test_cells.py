"Cells against a naive model: one entry a token, plain Python, written from the definition of each verb"
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from llamaref.memory.cells import Cells, END, Line

SIZE, SEQS = 12, 3

class Naive:
    "A list of tokens, each with a position, owners, and what it has been shifted by"
    def __init__(self): self.tokens = []

    def put(self, pos, ids): self.tokens += [dict(pos=p, own=set(ids), moved=0) for p in pos]
    def of(self, s): return [t for t in self.tokens if s in t['own']]
    def within(self, s, p0, p1):
        lo, hi = max(p0, 0), p1 if p1 >= 0 else END
        return [t for t in self.of(s) if lo <= t['pos'] < hi]
    def sweep(self): self.tokens = [t for t in self.tokens if t['own'] and t['pos'] >= 0]

    def seq_rm(self, s, p0=-1, p1=-1):
        for r in range(SEQS) if s < 0 else [s]:
            for t in self.within(r, p0, p1): t['own'].discard(r)
        self.sweep()
    def seq_cp(self, a, b, p0=-1, p1=-1):
        for t in self.within(a, p0, p1): t['own'].add(b)
    def seq_keep(self, s):
        for t in self.tokens: t['own'] &= {s}
        self.sweep()
    def seq_add(self, s, p0, p1, d):
        for t in self.within(s, p0, p1): t['pos'] += d; t['moved'] += d
        self.sweep()
    def seq_div(self, s, p0, p1, d, exact):
        for t in self.within(s, p0, p1):
            new = t['pos'] // d
            t['moved'] += new - t['pos'] if exact else t['pos'] - new     # llama.cpp's sign unless exact
            t['pos'] = new
    def clear(self): self.tokens = []
    def last(self, s): return max((t['pos'] for t in self.of(s)), default=-1)
    def first(self, s): return min((t['pos'] for t in self.of(s)), default=-1)

seq, edge = st.integers(0, SEQS - 1), st.integers(-1, 14)
OPS = st.one_of(
    st.tuples(st.just('put'), seq, st.integers(1, 5)),
    st.tuples(st.just('put'), st.sampled_from([(0, 1), (1, 2), (2, 0, 1)]), st.integers(1, 2)),
    st.tuples(st.just('seq_rm'), st.integers(-1, SEQS - 1), edge, edge),
    st.tuples(st.just('seq_cp'), seq, seq, edge, edge),
    st.tuples(st.just('seq_keep'), seq),
    st.tuples(st.just('seq_add'), seq, edge, edge, st.integers(-6, 6)),
    st.tuples(st.just('seq_div'), seq, edge, edge, st.integers(1, 4), st.booleans()),
    st.tuples(st.just('clear')))

def put(mem, naive, who, n):
    ids = who if isinstance(who, tuple) else (who,)
    start = max(naive.last(s) for s in ids) + 1
    pos = np.arange(start, start + n, dtype=np.int32)
    cells = mem.find(n)
    assert (cells is None) == (n > SIZE - len(naive.tokens))
    if cells is None: return
    assert len(set(cells.tolist())) == n and (mem.pos[cells] == -1).all()   # never a live cell
    mem.place(cells, pos, [ids] * n)
    naive.put(pos.tolist(), ids)

def agree(mem, naive):
    live = mem.pos >= 0
    assert mem.used == live.sum() == len(naive.tokens)
    assert (mem.owners == mem.seqs.sum(1)).all() and ((mem.owners > 0) == live).all()
    key = lambda pos, own, moved: (pos, sorted(own), moved)
    ours = [key(int(mem.pos[c]), np.flatnonzero(mem.seqs[c]).tolist(), int(mem.shift[c]))
            for c in np.flatnonzero(live)]
    assert sorted(ours) == sorted(key(t['pos'], t['own'], t['moved']) for t in naive.tokens)
    for s in range(SEQS):
        line = mem.lines[s]
        assert sorted(line.cell[:line.n].tolist()) == np.flatnonzero(mem.seqs[:, s]).tolist()
        assert line.at[:line.n].tolist() == mem.pos[line.cell[:line.n]].tolist()
        assert line.at[:line.n].tolist() == sorted(t['pos'] for t in naive.of(s))
        assert (mem.seq_pos_min(s), mem.seq_pos_max(s)) == (naive.first(s), naive.last(s))

@settings(max_examples=150, deadline=None)
@given(st.lists(OPS, max_size=14))
def test_random_operations_agree_with_the_naive_model(ops):
    mem, naive = Cells(SIZE, SEQS), Naive()
    for name, *args in ops:
        if name == 'put': put(mem, naive, *args)
        else:
            assert getattr(mem, name)(*args) in (None, True)
            getattr(naive, name)(*args)
        agree(mem, naive)

def naive_find(mem, n, window):
    "Cell by cell from the head, as the definition reads"
    def usable(c):
        if mem.pos[c] < 0: return True
        own = np.flatnonzero(mem.seqs[c])
        return bool(window) and len(own) == 1 and mem.seq_pos_max(own[0]) + 1 - mem.pos[c] >= window
    head = 0 if mem.head > mem.used + 2 * n else mem.head
    order = [*range(head, mem.size), *range(min(head, mem.size))]
    out = [c for c in order if usable(c)][:n]
    return out if len(out) == n else None

@settings(max_examples=100, deadline=None)
@given(st.lists(OPS, max_size=10), st.integers(1, 13), st.sampled_from([0, 1, 2, 4, 7]))
def test_find_walks_from_the_head_and_wraps(ops, n, window):
    mem, naive = Cells(SIZE, SEQS), Naive()
    for name, *args in ops:
        if name == 'put': put(mem, naive, *args)
        else: getattr(mem, name)(*args); getattr(naive, name)(*args)
    before = (mem.pos.tolist(), mem.head, mem.seqs.tolist())
    found = mem.find(n, window)
    assert (found.tolist() if found is not None else None) == naive_find(mem, n, window)
    assert before == (mem.pos.tolist(), mem.head, mem.seqs.tolist())

@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 4)), max_size=25), st.integers(2, 5))
def test_a_window_never_loses_what_it_still_needs(puts, window):
    mem, last = Cells(14, 2), [-1, -1]
    for s, n in puts:
        pos = np.arange(last[s] + 1, last[s] + 1 + n, dtype=np.int32)
        cells = mem.find(n, window)
        if cells is None: continue
        mem.evict(cells)
        mem.place(cells, pos, [(s,)] * n)
        last[s] += n
        for r in (0, 1):
            held = mem.lines[r].at[:mem.lines[r].n].tolist()
            assert held == list(range(held[0], last[r] + 1)) if held else last[r] == -1   # no gap
            first = last[s] - n + 1 if r == s else last[r] + 1   # of this batch, or the next
            if held: assert held[0] <= max(0, first + 1 - window)

def test_every_sequence_of_a_window_fits_in_window_plus_rows():
    mem = Cells(4 + 3)
    for p in range(0, 60, 3):
        cells = mem.find(3, window=4)
        assert cells is not None
        mem.evict(cells); mem.place(cells, np.arange(p, p + 3), [(0,)] * 3)
    assert (mem.seq_pos_min(0), mem.seq_pos_max(0)) == (53, 59)

def brute_mask(mem, s, p, window):
    "The definition of visibility, cell by cell"
    return sorted((int(mem.pos[c]), c) for c in range(mem.size)
                  if mem.seqs[c, s] and mem.pos[c] <= p and (not window or p - mem.pos[c] < window))

@settings(max_examples=100, deadline=None)
@given(st.lists(OPS, max_size=12), seq, st.sampled_from([0, 1, 3, 5]))
def test_read_is_the_mask_in_the_order_of_positions(ops, s, window):
    mem, naive = Cells(SIZE, SEQS), Naive()
    for name, *args in ops:
        if name == 'put': put(mem, naive, *args)
        else: getattr(mem, name)(*args); getattr(naive, name)(*args)
    p = np.array([t['pos'] for t in naive.of(s)], np.int32)
    cells, ranges = mem.read(s, p, window)
    assert cells.dtype == np.int32 and ranges.dtype == np.int32
    for row, (a, b) in zip(p, ranges):
        got = cells[a:b]
        assert mem.pos[got].tolist() == sorted(mem.pos[got].tolist())
        assert sorted((int(mem.pos[c]), int(c)) for c in got) == brute_mask(mem, s, row, window)
    if len(p):
        assert ranges[:, 0].min() == 0 and ranges[:, 1].max() == len(cells)

def fill(n, size=8, seqs=2):
    mem = Cells(size, seqs)
    mem.place(mem.find(n), np.arange(n), [(0,)] * n)
    return mem

def test_acceptance_5_algebra():
    mem = fill(6)
    assert mem.seq_rm(0, 2, 4) is True
    assert (mem.used, mem.seq_pos_min(0), mem.seq_pos_max(0)) == (4, 0, 5)
    mem.seq_cp(0, 1); mem.seq_rm(0)
    assert mem.used == 4 and (mem.owners[mem.pos >= 0] == 1).all() and mem.seqs[mem.pos >= 0, 1].all()
    mem.seq_add(1, 4, -1, -2)
    assert mem.lines[1].at[:4].tolist() == [0, 1, 2, 3]

def test_acceptance_5_window():
    cells, ranges = fill(6).read(0, np.array([5]), window=4)
    assert cells.tolist() == [2, 3, 4, 5] and ranges.tolist() == [[0, 4]]

def test_acceptance_5_no_slot_changes_nothing():
    mem = Cells(8)
    assert mem.find(9) is None and mem.used == 0 and mem.head == 0

def test_the_search_starts_over_when_the_head_is_far_out():
    mem = Cells(32)
    mem.place(mem.find(20), np.arange(20), [(0,)] * 20)
    mem.place(mem.find(1), np.array([20]), [(0,)])
    mem.seq_rm(0, 0, 18)
    mem.head = 21                                   # used 3, head 21 > 3 + 2
    assert mem.find(1).tolist() == [0]
    mem.head = 5                                    # 5 is not above 3 + 2
    assert mem.find(1).tolist() == [5]

def test_equal_positions_keep_their_order():
    mem = fill(8)
    mem.seq_div(0, -1, -1, 2)
    assert mem.lines[0].cell[:8].tolist() == [*range(8)]
    assert mem.lines[0].at[:8].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    mem.seq_cp(0, 1)
    assert mem.lines[1].cell[:8].tolist() == [*range(8)]

def test_owners_of_shared_cells_all_move():
    mem = fill(6)
    mem.seq_cp(0, 1)
    mem.seq_add(0, 3, -1, 4)
    assert mem.seq_pos_max(1) == 9
    mem.seq_add(1, 0, 3, -2)
    assert mem.lines[0].at[:mem.lines[0].n].tolist() == [0, 7, 8, 9] and mem.used == 4

@pytest.mark.parametrize('p0,p1,left', [(-1, -1, 0), (0, 0, 6), (4, 2, 6), (6, -1, 6), (-5, 3, 3),
                                        (5, 100, 5)])
def test_open_and_empty_ranges(p0, p1, left):
    mem = fill(6)
    mem.seq_rm(0, p0, p1)
    assert mem.used == left

def test_a_copy_shares_nothing():
    mem = fill(5)
    twin = mem.copy()
    twin.place(twin.find(2), np.array([5, 6]), [(1,)] * 2); twin.seq_rm(0, 0, 2); twin.seq_add(0, 2, -1, 1)
    assert mem.used == 5 and mem.head == 5 and mem.pos[:5].tolist() == [0, 1, 2, 3, 4] and not mem.shift.any()
    assert mem.lines[0].n == 5 and mem.lines[1].n == 0 and not mem.shifted

def test_line_grows_and_keeps_order():
    line = Line()
    for i in range(100): line.append([i], [i])
    line.append([200, 201], [50, 3])
    assert line.n == 102 and (np.diff(line.at[:102]) >= 0).all() and line.span(50, 51) == (51, 53)

def test_pictures_fold_large_memories():
    mem = Cells(1000, 2)
    mem.place(mem.find(500), np.arange(500), [(0,)] * 500)
    text = repr(mem).splitlines()
    assert text[0] == '1000 cells, 500 used, next at 500' and len(text[1]) < 200
    assert '█' in text[2] and '▒' in text[2] and '·' in text[2]
    assert mem._repr_html_().count('<td') == 2 * (32 + 1)
