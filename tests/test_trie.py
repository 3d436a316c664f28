"Trie and Aho–Corasick: the tables of spec 31.1 and 31.2, and brute force"
import pytest
from hypothesis import given, settings, strategies as st

from llamaref.trie import (COMPLETE_MATCH, NO_MATCH, PARTIAL_MATCH, AhoCorasick, SeqMatcher, Trie)

def test_duplicates_take_no_index():
    t = Trie()
    assert [t.insert(p) for p in ('ab', 'cd', 'ab', 'ef')] == [0, 1, 0, 2]

def test_empty_pattern_marks_the_root():
    t = Trie()
    assert t.insert('') == 0 and t.nodes[0].pattern == 0
    assert t.check_at('a', 0) == NO_MATCH

@pytest.mark.parametrize('bad', [b'ab', bytearray(b'a'), [1, -1], ['a'], [1.5], None])
def test_only_text_and_integers(bad):
    with pytest.raises(TypeError): Trie().insert(bad)

@pytest.mark.parametrize('patterns, text, pos, want', [
    (['</think>', '</tool>'], 'a</think>', 1, COMPLETE_MATCH),
    (['</think>', '</tool>'], 'a</t', 1, PARTIAL_MATCH),
    (['</think>', '</tool>'], 'a</tx', 1, NO_MATCH),
    (['</think>', '</tool>'], 'a', 1, NO_MATCH),
    (['</think>', '</tool>'], '</x', 0, NO_MATCH),
    (['<', '<a'], '<a', 0, COMPLETE_MATCH),
    (['aé'], 'aé'.encode(), 0, COMPLETE_MATCH),
    (['aéb'], 'aé'.encode()[:2], 0, PARTIAL_MATCH),     # a cut character is not there yet
    (['é'], 'é'.encode()[:1], 0, NO_MATCH),
    ([[5, 6]], [4, 5], 1, PARTIAL_MATCH),
])
def test_check_at(patterns, text, pos, want): assert Trie(patterns).check_at(text, pos) == want

@pytest.mark.parametrize('seqs, stream, want', [
    ([[7, 7, 8]], [7, 7, 7, 8], [-1, -1, -1, 0]),
    ([[104], [103, 104]], [103, 104], [-1, 1]),
    ([[104], [103, 104]], [104], [0]),
    ([[5, 6, 7], [6]], [5, 6, 7], [-1, 1, -1]),
    ([[1, 2], [2, 3]], [1, 2, 3], [-1, 0, -1]),
    ([[1, 2, 1]], [1, 2, 1, 2, 1], [-1, -1, 0, -1, -1]),
    ([[], [9], [9], [8]], [8, 9], [1, 0]),
    ([], [1, 2], [-1, -1]),
])
def test_matcher_starts_anew_after_a_match(seqs, stream, want):
    m = SeqMatcher(seqs)
    assert [m.advance(t) for t in stream] == want

@pytest.mark.parametrize('patterns, text, want', [
    ([[1, 2], [2, 3]], [1, 2, 3], [-1, 0, 1]),
    ([[1, 2, 1]], [1, 2, 1, 2, 1], [-1, -1, 0, -1, 0]),
    (['he', 'she', 'his', 'hers'], [ord(c) for c in 'ushers'], [-1, -1, -1, 1, -1, 3]),
])
def test_raw_automaton_keeps_its_state(patterns, text, want):
    ac, s, got = AhoCorasick(patterns), 0, []
    for c in text:
        s = ac.next(s, c)
        got.append(ac.match_pattern(s))
        assert ac.is_terminal(s) == (got[-1] >= 0)
    assert got == want

def test_matcher_reset():
    m = SeqMatcher([[1, 2]])
    m.advance(1); m.reset()
    assert m.advance(2) == -1

@pytest.mark.parametrize('text, want', [('ab</th', 2), ('ab', 2), ('a<<', 2), ('</think>', 8), ('', 0)])
def test_partial_suffix(text, want):
    assert Trie(['</think>']).partial_suffix(text) == want

def test_alphabet_states_depth():
    ac = AhoCorasick([[1, 2], [1, 3]])
    assert ac.alphabet == {1, 2, 3} and ac.num_states == 4 and sorted(ac.depth) == [0, 1, 2, 2]

def test_deep_and_wide():
    "Neither a long pattern nor many of them trip over recursion"
    t = Trie([[1] * 3000, *([7, i] for i in range(5000))])
    assert len(repr(t).splitlines()) == 3000 + 5001 + 1
    ac = AhoCorasick(t)
    assert len(list(ac.matches([1] * 3002))) == 3

def test_steps_stay_linear(monkeypatch):
    "aaaa… against aaa…b: no more fail steps than symbols"
    ac = AhoCorasick(['a' * 2000 + 'b'])
    class Counting(list):
        n = 0
        def __getitem__(self, i):
            Counting.n += 1
            return list.__getitem__(self, i)
    ac.fail = Counting(ac.fail)
    assert list(ac.matches('a' * 20_000)) == []
    assert Counting.n <= 20_000

pats = st.lists(st.text('ab', min_size=1, max_size=5), max_size=8)

def brute(patterns, text):
    return sorted((a, b, patterns.index(text[a:b])) for b in range(len(text) + 1) for a in range(b)
                  if text[a:b] in patterns)

@settings(max_examples=150, deadline=None)
@given(pats, st.text('abc', max_size=40))
def test_all_matches_equal_brute_force(patterns, text):
    patterns = list(dict.fromkeys(patterns))
    ac = AhoCorasick(patterns)
    assert sorted(ac.matches(text)) == brute(patterns, text)
    as_bytes = AhoCorasick([list(p.encode()) for p in patterns])
    assert sorted(as_bytes.matches(text.encode())) == brute(patterns, text)
    assert sorted(ac.matches([ord(c) for c in text])) == brute(patterns, text)

@settings(max_examples=150, deadline=None)
@given(pats, st.text('abc', max_size=20))
def test_partial_suffix_equals_brute_force(patterns, text):
    proper = {p[:i] for p in patterns for i in range(1, len(p))}
    want = min([i for i in range(len(text)) if text[i:] in proper], default=len(text))
    assert Trie(patterns).partial_suffix(text) == want

@settings(max_examples=150, deadline=None)
@given(pats, st.text('ab', max_size=12), st.integers(0, 12))
def test_longest_at_equals_brute_force(patterns, text, pos):
    patterns = list(dict.fromkeys(patterns))
    fits = [p for p in patterns if text.startswith(p, pos) and pos <= len(text)]
    want = max(((patterns.index(p), pos + len(p)) for p in fits), key=lambda o: o[1], default=None)
    assert Trie(patterns).longest_at(text, pos) == want

@settings(max_examples=150, deadline=None)
@given(pats, st.text('ab', max_size=30))
def test_matcher_is_earliest_then_longest(patterns, text):
    patterns, got, begin = list(dict.fromkeys(patterns)), [], 0
    for end in range(1, len(text) + 1):
        fits = [p for p in patterns if text[begin:end].endswith(p)]
        got.append(patterns.index(max(fits, key=len)) if fits else -1)
        if fits: begin = end
    m = SeqMatcher(patterns)
    assert [m.advance(ord(c)) for c in text] == ([-1] * len(text) if not patterns else
           [SeqMatcher(patterns).sequences.index(patterns[i]) if i >= 0 else -1 for i in got])
