"""Samplers against recorded values of llama.cpp, tables worked by hand, and what must always hold"""
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from conftest import data, shared

from llamaref.errors import SamplingError
from llamaref.files.gguf import GGUFFile
from llamaref.files.vocab import Vocab
from llamaref.sampling.candidates import Candidates, order, rank
from llamaref.sampling.chain import (SamplerChain, SamplingParams, gguf_sampling, params_of,
                                     samplers_from_letters, samplers_from_names)
from llamaref.sampling.dry import Dry, all_heads, breaker_heads, suffix_matches
from llamaref.sampling.infill import Infill, prefix_pairs
from llamaref.sampling.mirostat import AdaptiveP, Mirostat, MirostatV2
from llamaref.sampling.rng import RANDOM_SEED, Rng, to_f32, to_f64
from llamaref.sampling.samplers import (Dist, Greedy, LogitBias, MinP, Penalties, Sampler, Temp, TempExt,
                                        TopK, TopNSigma, TopP, Typical, Xtc)

def cands(*p): return Candidates(np.log(np.float32(p)))

def final(s, *p, dist=True):
    "Candidates after the sampler, with probabilities"
    c = s.apply(cands(*p))
    return Dist(0).apply(c) if dist else c

# ---- random numbers ----

SEEDS = {0: ([2357136044, 2546248239, 3071714933, 3626093760], (0.59284461651668263, 0.84426574425659828),
             0.548813522),
         1: ([1791095845, 4282876139, 3093770124, 4005303368], (0.99718480823026556, 0.93255736136816547),
             0.41702199),
         42: ([1608637542, 3421126067, 4083286876, 787846414], (0.79654298428784598, 0.18343478789336848),
              0.37454012),
         1234: ([822569775, 2137449171, 2671936806, 3512589365], (0.49766366630595166, 0.81783844288953322),
                0.191519454)}

@pytest.mark.parametrize('seed', SEEDS)
def test_rng_table(seed):
    raw, f64, f32 = SEEDS[seed]
    r = Rng(seed)
    assert [r.raw() for _ in range(4)] == raw
    r.reset()
    assert (r.f64(), r.f64()) == f64
    assert abs(Rng(seed).f32() - f32) < 5e-9

def test_rng_never_reaches_one():
    top = 2**32 - 1
    assert to_f64(top, top) == np.nextafter(1, 0)
    assert to_f32(top) == np.nextafter(np.float32(1), np.float32(0))
    assert to_f64(0, 0) == 0 and to_f32(0) == 0 and to_f32(2**32 - 129) < 1

def test_uniforms_of_many_seeds(golden):
    for seed, want in golden['uniform_of_seed'].items():
        r = Rng(int(seed))
        np.testing.assert_allclose([r.f64() for _ in want], want, rtol=0, atol=1e-16)

def test_discrete_draws_only_when_there_is_a_choice():
    a, b = Rng(5), Rng(5)
    assert a.discrete([3.]) == 0 and a.discrete([]) == 0 and a.raw() == b.raw()

def test_random_seed_differs_and_is_drawn_again_at_reset():
    a, b = Rng(-1), Rng(RANDOM_SEED)
    first = [a.raw() for _ in range(4)]
    assert first != [b.raw() for _ in range(4)]
    a.reset()
    assert first != [a.raw() for _ in range(4)] and a.seed == RANDOM_SEED

# ---- tables of the specification ----

UP, DOWN = (.1, .2, .3, .4), (.4, .3, .2, .1)
BEST_2, BEST_3 = (.571429, .428571), (.44444, .33333, .22222)

TABLE = [
    (Temp(1.), UP, UP), (TempExt(1., 0., 1.), UP, UP), (Temp(0.), UP, (0, 0, 0, 1)),
    (TempExt(0., 0., 1.), UP, (0, 0, 0, 1)),
    (TopK(1), UP, (1,)), (TopK(3), UP, BEST_3), (TopK(4), UP, DOWN), (TopK(0), UP, UP),
    (TopP(0.), UP, (1,)), (TopP(.7), UP, BEST_2), (TopP(.8), UP, BEST_3), (TopP(1.), UP, UP),
    (MinP(0.), UP, UP), (MinP(.24), UP, UP), (MinP(.26), UP, BEST_3[::-1]), (MinP(.49), UP, BEST_3[::-1]),
    (MinP(.51), UP, BEST_2[::-1]), (MinP(.74), UP, BEST_2[::-1]),
    (MinP(.76), UP, (1,)), (MinP(1.), UP, (1,)), (MinP(1.05), UP, (1,)),
    (TopNSigma(1.), UP, (0, 0, .428571, .571429)), (TopNSigma(0.), UP, UP), (TopNSigma(3.), UP, UP)]

@pytest.mark.parametrize('s,p,want', TABLE, ids=lambda v: repr(v) if isinstance(v, Sampler) else '')
def test_table(s, p, want):
    np.testing.assert_allclose(final(s, *p).probs, want, atol=1e-5)

TABLE_NO_DIST = [
    (Xtc(.99, .09, 0, 0), DOWN, (.1,)), (Xtc(.99, .19, 0, 0), DOWN, (.2, .1)),
    (Xtc(.99, .29, 0, 0), DOWN, (.3, .2, .1)), (Xtc(.99, .39, 0, 0), DOWN, DOWN),
    (Typical(.5), (.97, .01, .01, .01), (.97,)), (Typical(.5), (.4, .2, .2, .2), (.2, .2, .2)),
    (TempExt(.8, .5, 1.), UP, (.373161, .294956, .211739, .120144)),
    (TempExt(.8, .5, 2.), UP, (.380614, .296526, .208569, .114292))]

@pytest.mark.parametrize('s,p,want', TABLE_NO_DIST, ids=lambda v: repr(v) if isinstance(v, Sampler) else '')
def test_table_without_dist(s, p, want):
    np.testing.assert_allclose(final(s, *p, dist=False).probs, want, atol=1e-5)

IDS = [(TopP(.7, 3), UP, [3, 2, 1]), (MinP(.26), UP, [1, 2, 3]), (MinP(.76, 2), UP, [3, 2]),
       (Typical(.3, 1), (.5, .25, .15, .1), [1, 0]), (Typical(.9, 1), (.5, .25, .15, .1), [1, 0, 2, 3]),
       (TempExt(.8, .5, 1.), UP, [3, 2, 1, 0])]

@pytest.mark.parametrize('s,p,want', IDS, ids=lambda v: repr(v) if isinstance(v, Sampler) else '')
def test_ids(s, p, want): assert s.apply(cands(*p)).ids.tolist() == want

def test_scores():
    inf = np.inf
    assert TopNSigma(1.).apply(Candidates([10, 9, 8, 0, -inf])).logits.tolist() == [10, 9, 8, -inf, -inf]
    for t, want in ((.5, [2, 6, 6]), (0., [-inf, 3, -inf]), (-1., [-inf, 3, -inf])):
        assert Temp(t).apply(Candidates([1, 3, 3])).logits.tolist() == want
    assert Greedy().apply(Candidates([1, 3, 3])).selected == 1
    c = TempExt(0., .5, 1.).apply(Candidates([1, 2, 3]))
    assert c.ids.tolist() == [2, 1, 0]
    np.testing.assert_allclose(c.probs, [.928951, .066315, .004734], atol=1e-5)

def test_xtc_min_keep_and_coin():
    assert [len(final(Xtc(.99, .19, n, 0), .4, .3, .2, .1, dist=False)) for n in (4, 2)] == [4, 2]
    s = Xtc(.5, .19, 1, 42)
    assert [len(s.apply(cands(.4, .3, .2, .1))) for _ in range(10)] == [2, 4, 4, 2, 4, 4, 4, 4, 2, 2]
    lone, pair = Xtc(.5, .1, 0, 3), Xtc(.5, .1, 0, 3)   # one candidate: no toss
    lone.apply(Candidates([1.]))
    assert lone.rng.raw() == pair.rng.raw()

PENALTIES = [
    ([0], (50, 0, 0), [0, .25, .25, .25, .25]), ([0], (1, 5, 5), [.000011] + [.249997] * 4),
    ([0, 1, 2], (50, 0, 0), [0, 0, 0, .5, .5]), ([0, 1, 2], (1, 5, 5), [.000023] * 3 + [.499966] * 2),
    ([0, 1, 2, 0, 0], (50, 0, 0), [0, 0, 0, .5, .5]),
    ([0, 1, 2, 0, 0], (1, 5, 5), [.000000, .000023, .000023, .499977, .499977])]

@pytest.mark.parametrize('accepted,args,want', PENALTIES)
def test_penalties(accepted, args, want):
    s = Penalties(len(accepted), *map(float, args))
    for t in accepted: s.accept(t)
    np.testing.assert_allclose(sorted(final(s, *[.2] * 5).probs), sorted(want), atol=1e-5)

def test_penalties_by_hand():
    for last_n, accepted, want in ((64, (0, 0, 1), [-.25, -4.75, 1, 0]),
                                   (2, (0, 0, 1, 3), [2, -4.75, 1, -.75])):
        s = Penalties(last_n, 2., .5, .25)
        for t in accepted: s.accept(t)
        assert s.apply(Candidates([2, -2, 1, 0])).logits.tolist() == want
    assert Penalties(-1, 2.).name == '?penalties'

@pytest.mark.parametrize('args,text', [
    ((64, 0.), 'penalty_repeat must be finite and greater than 0'), ((64, -1.), 'penalty_repeat must be'),
    ((64, math.nan), 'penalty_repeat must be'), ((64, math.inf), 'penalty_repeat must be'),
    ((64, 1e-45), 'penalty_repeat must be'), ((64, 1., math.inf), 'penalty_freq must be finite'),
    ((64, 1., 0., math.nan), 'penalty_present must be finite')])
def test_penalties_refused(args, text):
    with pytest.raises(SamplingError, match=text): Penalties(*args)

def test_logit_bias():
    s = LogitBias([(2, 1.5), (0, -np.inf), (2, 1.), (99, 3.)])
    assert s.apply(Candidates([1, 2, 3])).logits.tolist() == [-np.inf, 2, 5.5]
    c = s.apply(Candidates([1, 2, 3]).sort())
    assert dict(zip(c.ids.tolist(), c.logits.tolist())) == {0: -np.inf, 1: 2, 2: 5.5}

def test_names_of_samplers_that_are_off():
    off = [TopK(0), TopP(1.), MinP(0.), Typical(1.), Temp(1.), TempExt(1., 0.), Xtc(0.), Xtc(1., .6),
           TopNSigma(0.), Penalties(), Penalties(0, 2.), LogitBias()]
    assert ' '.join(s.name for s in off) == (
        '?top-k ?top-p ?min-p ?typical ?temp ?temp-ext ?xtc ?xtc ?top-n-sigma ?penalties ?penalties '
        '?logit-bias')
    for s in off:
        s.accept(1)
        c = s.apply(Candidates([3., 1., 2.]))
        assert c.ids.tolist() == [0, 1, 2] and c.logits.tolist() == [3, 1, 2] and not c.sorted

PICKS = {0: [2, 3, 3, 3, 3, 2, 1, 0, 1, 2, 3, 2], 1: [3, 3, 1, 3, 1, 2, 2, 3, 3, 3, 2, 2],
         42: [3, 1, 3, 2, 2, 0, 2, 2, 1, 3, 0, 3], 1234: [2, 3, 3, 3, 3, 1, 1, 3, 1, 1, 0, 2]}

@pytest.mark.parametrize('seed', PICKS)
def test_dist_picks(seed):
    s = Dist(seed)
    assert [s.apply(cands(.1, .2, .3, .4)).token for _ in range(12)] == PICKS[seed]

def test_dist_many_equal_and_draw_count():
    s = Dist(42)
    picks = [s.apply(Candidates(np.zeros(256))).token for _ in range(8)]
    assert picks == [203, 46, 199, 152, 114, 25, 117, 85]
    one, two = Dist(4242), Dist(4242)
    one.apply(Candidates([1.])); two.apply(Candidates([1., 1.]))
    assert one.rng.raw() == two.rng.raw()

def test_top_p_1_and_a_random_seed_draw_different_texts():
    draw = lambda seed: [s.sample(np.zeros(1000, np.float32)) for s in [Dist(seed)] for _ in range(8)]
    assert len({tuple(draw(-1)) for _ in range(5)}) == 5 and draw(7) == draw(7)

# ---- queues against whole numbers ----

MAKE = {'k': lambda: TopK(100), 'p': lambda: TopP(.8), 'm': lambda: MinP(.1)}

@pytest.mark.parametrize('queue', 'k p m kp km pk pm mk mp kpm kmp pkm pmk mkp mpk'.split())
def test_queue_against_integers(queue):
    n = 10_000
    with np.errstate(divide='ignore'): c = Candidates(np.log(np.arange(n, dtype=np.float32)))
    want = np.arange(n)[::-1]   # best first; odds are the ids
    for s in queue:
        MAKE[s]().apply(c); Dist(0).apply(c)
        if s == 'k': want = want[:100]
        if s == 'm': want = want[want >= .1 * (n - 1)]
        if s == 'p': want = want[:np.searchsorted(np.cumsum(want), math.ceil(.8 * want.sum())) + 1]
        assert abs(len(c) - len(want)) <= ('p' in queue)
        want = np.sort(c.ids)[::-1]
        assert want[0] == n - 1 and (np.diff(want) == -1).all()

# ---- recorded values of llama.cpp ----

@pytest.fixture(scope='module')
def golden(): return json.loads(data('golden', 'samplers.json').read_text())

@pytest.fixture(scope='module')
def arrays():
    with np.load(data('golden', 'samplers.npz')) as z: return {k: z[k] for k in z.files}

def bias_of(pairs): return [(t, float(b)) for t, b in pairs]

BUILD = {
    'greedy': Greedy, 'dist': Dist, 'top_k': TopK, 'top_p': TopP, 'min_p': MinP, 'typical': Typical,
    'temp': Temp, 'temp_ext': lambda t, delta, exponent: TempExt(t, delta, exponent),
    'top_n_sigma': TopNSigma, 'xtc': lambda p, t, min_keep, seed: Xtc(p, t, min_keep, seed),
    'penalties': Penalties, 'logit_bias': lambda bias: LogitBias(bias_of(bias))}

def same_up_to_ties(c, x, ids, logits):
    "Are these the recorded candidates, in their order, where equal input scores may change places?"
    np.testing.assert_allclose(c.logits, logits, rtol=1e-5, atol=2e-6)
    np.testing.assert_array_equal(x[c.ids], x[ids])
    assert len(set(c.ids.tolist())) == len(ids)

def apply_cases(golden, kinds):
    return [c for c in golden['cases'] if c['kind'] == 'apply' and c['sampler'] in kinds]

@pytest.mark.parametrize('kind', BUILD)
def test_apply(golden, arrays, kind):
    cases = apply_cases(golden, [kind])
    assert cases
    for case in cases:
        x = arrays['logits/' + case['input']]
        if kind == 'typical' and np.isinf(x).any() and case['params']['p'] < 1:
            continue   # the peer's entropy is nan there; ours is tested below
        if kind == 'logit_bias' and case['input_sorted']:
            continue   # the peer forgets to add up there; ours is tested above
        s = BUILD[kind](**case['params'])
        for t in case.get('accepted', []): s.accept(t)
        c = Candidates(x)
        s.apply(c.sort() if case['input_sorted'] else c)
        key = case['key']
        assert len(c) == case['n_out'], case
        same_up_to_ties(c, x, arrays[key + '/ids'], arrays[key + '/logits'])
        if kind in ('dist', 'greedy'): assert c.selected == case['selected'], case
        if case['p_valid'] and kind in ('dist', 'temp_ext', 'typical', 'xtc'):
            np.testing.assert_allclose(c.probs, arrays[key + '/p'], atol=1e-5)

@pytest.mark.parametrize('kind', ['draws', 'default_chain', 'chain'])
def test_draws(golden, arrays, kind):
    for case in [c for c in golden['cases'] if c['kind'] == kind]:
        x = arrays['logits/' + case['input']]
        for seed, want in case['tokens'].items():
            seed = int(seed)
            chain = [BUILD[k](**p, **({'seed': seed} if k == 'xtc' else {})) for k, p in case['chain']]
            chain.append(Dist(seed))
            for n, token in enumerate(want):
                c = Candidates(x)
                for s in chain: s.apply(c)
                assert c.token == token, (case['chain'], case['input'], seed, n)
                for s in chain: s.accept(token)

def test_typical_puts_masked_tokens_last():
    c = Typical(.99).apply(Candidates([1., -np.inf, 3., 2.9, -np.inf]))
    assert not {1, 4} & set(c.ids.tolist())

# ---- what must always hold ----

values = st.one_of(st.floats(-30, 30, width=32), st.sampled_from([-np.inf, 0., 1., 2.]))
rows = st.lists(values, min_size=1, max_size=60).filter(lambda x: max(x) > -np.inf)
unit = st.floats(0, 1.2)
keep = st.integers(0, 70)
cutting = st.one_of(
    st.builds(TopK, st.integers(-2, 70)), st.builds(TopP, unit, keep), st.builds(MinP, unit, keep),
    st.builds(Typical, unit, keep), st.builds(Xtc, unit, st.floats(0, .6), keep, st.integers(0, 9)))
changing = st.one_of(
    st.builds(Temp, st.floats(-1, 3)),
    st.builds(TempExt, st.floats(0, 2), st.floats(0, 2), st.floats(0, 3)),
    st.builds(TopNSigma, st.floats(-1, 3)),
    st.builds(LogitBias, st.dictionaries(st.integers(0, 80), st.floats(-9, 9))))

@settings(max_examples=150, deadline=None)
@given(rows, st.lists(st.one_of(cutting, changing), max_size=5), st.integers(0, 2**32 - 2))
def test_never_a_token_that_was_removed_or_masked(x, samplers, seed):
    c, alive = Candidates(x), set(range(len(x)))
    for s in samplers:
        before = len(c)
        s.apply(c)
        assert 1 <= len(c) <= before and len(c.ids) == len(c.logits) == len(c.probs)
        assert set(c.ids.tolist()) <= alive and len(set(c.ids.tolist())) == len(c)
        if c.sorted: assert (c.logits[:-1] >= c.logits[1:]).all()
        alive = set(c.ids.tolist())
    Dist(seed).apply(c)
    assert c.token in alive and c.logits[c.selected] > -np.inf and c.probs[c.selected] > 0
    assert abs(c.probs.sum() - 1) < 1e-4
    assert Greedy().apply(c).selected == int(np.argmax(c.logits))

@settings(max_examples=100, deadline=None)
@given(rows, cutting)
def test_min_keep_is_kept(x, s):
    least = min(len(x), max(1, getattr(s, 'min_keep', 1)))
    if isinstance(s, Xtc): least = len(x) - np.isfinite(x).sum() + 1 if s.min_keep == 0 else least
    assert len(s.apply(Candidates(x))) >= min(least, len(x))

@settings(max_examples=100, deadline=None)
@given(st.lists(values, max_size=300), st.integers(-1, 310))
def test_order_is_stable(x, k):
    a = np.float32(x)
    want = sorted(range(len(x)), key=lambda i: -a[i])[:max(k, 0)]
    assert order(a, k).tolist() == want

def test_rank_of_a_long_row_is_stable():
    x = np.random.default_rng(0).normal(0, 2, 20_000).round(1).astype(np.float32)
    x[::7], x[::11], x[1::11] = -np.inf, 0., -0.
    assert rank(x).tolist() == np.argsort(-x, kind='stable').tolist()
    for k in (1, 40, 5000): assert order(x, k).tolist() == rank(x)[:k].tolist()

@settings(max_examples=50, deadline=None)
@given(rows, st.integers(0, 999), st.integers(0, 6))
def test_a_clone_draws_the_same_and_then_diverges(x, seed, n):
    x = np.float32(x)
    s = Dist(seed)
    for _ in range(n): s.sample(x)
    twin = s.clone()
    assert [s.sample(x) for _ in range(4)] == [twin.sample(x) for _ in range(4)]
    s.sample(x)
    assert s.rng.raw() != twin.rng.raw()

def test_clone_of_penalties_owns_its_ring():
    s = Penalties(4, 2.)
    for t in (1, 2): s.accept(t)
    twin = s.clone()
    twin.accept(3); s.accept(9)
    assert list(s.ring) == [1, 2, 9] and list(twin.ring) == [1, 2, 3] and twin.count[9] == 0

@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 8))
def test_ring_counts_are_those_of_the_last_n(tokens, n):
    s = Penalties(n, 2.)
    for t in tokens: s.accept(t)
    assert dict(s.count) == {t: tokens[-n:].count(t) for t in set(tokens[-n:])}

# ---- hopeless rows ----

@pytest.mark.parametrize('s', [Greedy(), Dist(1)], ids=repr)
def test_policy(s):
    hopeless = (([], 'no valid candidates'), ([-np.inf] * 3, 'no valid candidates'),
                ([0, np.nan], 'NaN in logits'), ([np.nan, 0], 'NaN in logits'))
    for row, text in hopeless:
        with pytest.raises(SamplingError, match=text): s.sample(np.float32(row))
    assert s.sample(np.float32([0, np.inf, 1])) == 1

def one_of_each():
    made = [Greedy(), Dist(1), Temp(.5), Temp(0.), TempExt(.5, .2), TopK(3), TopP(.5), MinP(.5), Typical(.5),
            TopNSigma(1.), Xtc(1., .1), LogitBias({1: 2.}), Penalties(4, 2.)]
    for s in made: s.accept(1)
    return made

def test_every_sampler_leaves_an_empty_array_alone():
    for s in one_of_each(): assert s.apply(Candidates([])).token is None

def test_every_sampler_survives_a_row_with_everything_masked():
    with np.errstate(all='raise'):
        for s in one_of_each():
            c = s.apply(Candidates([-np.inf] * 5))
            assert len(c) >= 1 and c.token is None

# ---- the chain ----

WAVE = (4 * np.sin(1 + .7 * np.arange(16))).astype(np.float32)

def six(seed):
    return SamplerChain([Penalties(64, 1.1), TopK(8), TopP(.95), MinP(.05), TempExt(.8), Dist(seed)])

def text(chain, n, row=WAVE): return ' '.join(str(chain.sample(row)) for _ in range(n))

WHOLE = {1: '11 2 1 11 10 10 10 9 2 9 10 10 10 1 10 2', 42: '0 1 0 9 1 10 10 10 1 9 1 0 11 1 11 9'}

@pytest.mark.parametrize('seed', WHOLE)
def test_whole_chain(seed):
    chain = six(seed)
    assert text(chain, 16) == WHOLE[seed] and chain.n_sample == 16 and chain.t_sample > 0
    chain.reset()
    assert text(chain, 16) == WHOLE[seed]

def test_whole_chain_first_step():
    c = six(1).apply(Candidates(WAVE))
    assert c.ids.tolist() == [1, 10, 9, 0, 2, 11]
    np.testing.assert_allclose(c.probs, [.298235, .294815, .147192, .140740, .061367, .057651], atol=1e-6)

def test_chain_clone_continues_and_then_diverges():
    chain = six(1)
    text(chain, 4)
    twin = chain.clone()
    assert text(chain, 4) == text(twin, 4) == '10 10 10 9'
    chain.accept(3)
    assert list(chain.get(0).ring) == [*twin.get(0).ring, 3]
    other = six(99)
    other.copy_from(chain)
    assert text(other, 8) == text(chain, 8)

def test_chain_editing():
    chain = SamplerChain([TopK(0), TopK(40), Dist(7)])
    assert repr(chain) == 'logits -> ?top-k -> top-k -> dist' and chain.seed == 7 and len(chain) == 3
    assert chain.get(3) is None and chain.get(-1) is None and chain.remove(5) is None
    assert chain.remove(1).k == 40 and len(chain) == 2
    with pytest.raises(SamplingError, match='chains differ'): chain.copy_from(SamplerChain([Dist(7)]))

def test_seed_is_that_of_the_last_selecting_sampler():
    assert SamplerChain([Dist(3), Dist(5)]).seed == 5 and SamplerChain([Dist(3), Dist(-1)]).seed == 3
    assert SamplerChain([Xtc(.5, .1, 0, 9), Dist(-1)]).seed == RANDOM_SEED == SamplerChain().seed

def test_names():
    assert samplers_from_names(['Top-K', 'nucleus', 'temp', 'bogus']) == ['top_k', 'top_p', 'temperature']
    assert samplers_from_letters('kpmt') == ['top_k', 'top_p', 'min_p', 'temperature']
    odd = ['TOPNSIGMA', 'minp', 'adaptivep', 'typ', 'top_k']
    assert samplers_from_names(odd) == ['top_n_sigma', 'min_p', 'adaptive_p', 'typ_p', 'top_k']
    for call in (lambda: samplers_from_names(['bogus'], strict=True),
                 lambda: samplers_from_letters('kz', strict=True)):
        with pytest.raises(SamplingError, match='unknown sampler'): call()

DEFAULT = ('logits -> ?penalties -> ?dry -> ?top-n-sigma -> top-k -> ?typical -> top-p -> min-p -> ?xtc'
           ' -> temp-ext -> dist')

@pytest.mark.parametrize('changes,want', [
    ({}, DEFAULT), (dict(samplers=[]), 'logits -> dist'),
    (dict(temperature=1., top_k=0), DEFAULT.replace(' top-k', ' ?top-k').replace('temp-ext', '?temp-ext')),
    (dict(samplers='tk', logit_bias=[(1, 2.)]), 'logits -> logit-bias -> temp-ext -> top-k -> dist'),
    (dict(samplers=['top_k', 'top_k']), 'logits -> top-k -> top-k -> dist'),
    (dict(dry_multiplier=.8, repeat_penalty=1.1, samplers='ed'), 'logits -> penalties -> dry -> dist')])
def test_built_chain(changes, want): assert repr(Sampler.chain(**changes)) == want

def test_built_chain_carries_the_parameters():
    given = dict(top_k=7, min_keep=3, seed=5, xtc_probability=.5, xtc_threshold=.2, typical_p=.9)
    chain = Sampler.chain(given, dynatemp_range=.1)
    by = {s.kind: s for s in chain.samplers}
    assert (by['top-k'].k, by['top-p'].min_keep, by['min-p'].min_keep, by['typical'].min_keep) == (7, 3, 3, 3)
    assert (by['xtc'].probability, by['xtc'].threshold, by['xtc'].seed, by['xtc'].min_keep) == (.5, .2, 5, 3)
    assert (by['temp-ext'].spread, by['dist'].seed, chain.seed) == (.1, 5, 5)

def test_params():
    assert params_of(SamplingParams(top_k=3), top_p=.5) == SamplingParams(top_k=3, top_p=.5)
    with pytest.raises(SamplingError, match="no sampling parameter 'top_kk'"): params_of(top_kk=3)
    with pytest.raises(SamplingError, match='mirostat is 3'): Sampler.chain(mirostat=3)
    with pytest.raises(SamplingError, match='penalty_repeat must be finite'): Sampler.chain(repeat_penalty=0)

def test_default_chain_of_recorded_draws_is_the_built_one(golden, arrays):
    cases = [c for c in golden['cases'] if c['kind'] == 'default_chain']
    assert cases
    for case in cases:
        for seed, want in case['tokens'].items():
            chain = Sampler.chain(seed=int(seed))
            assert [chain.sample(arrays['logits/' + case['input']]) for _ in want] == want

def test_model_file_defaults():
    in_file = dict(sequence='top_k;temperature', top_k=5, temp=.5, penalty_last_n=9, penalty_repeat=1.2,
                   mirostat=2, top_p='x', min_p=True, mirostat_tau=4)
    assert gguf_sampling({f'general.sampling.{k}': v for k, v in in_file.items()}) == dict(
        samplers=['top_k', 'temperature'], top_k=5, temperature=.5, repeat_last_n=9, repeat_penalty=1.2,
        mirostat=2, mirostat_tau=4.)
    assert gguf_sampling({}) == {}

@pytest.fixture(scope='module')
def tiny():
    with GGUFFile(data('models', 'tiny-qwen3.gguf')) as f: return Vocab.from_gguf(f)

def test_bias_from_the_vocabulary(tiny):
    bias = Sampler.chain(ignore_eos=True, vocab=tiny, logit_bias={3: 1.}).get(0)
    assert bias.total == {3: 1.} | {t: -np.inf for t in tiny.eog_ids}
    with pytest.raises(SamplingError, match='needs the vocabulary'): Sampler.chain(ignore_eos=True)

# ---- dry ----

DRY = [
    (4, (1., 1.1, 2), 4, [0, 1], {}, [.25] * 4),
    (4, (1., 1.1, 2), 5, [0, 1, 2, 0, 1], {}, [.296923, .296923, .109232, .296923]),
    (5, (1., 1.1, 2), 6, [0, 1, 3, 4, 0, 1], {3: [()]}, [.2] * 5),
    (5, (2., 1.1, 2), 5, [0, 1, 2, 0, 1], {}, [.241818, .241818, .032727, .241818, .241818]),
    (5, (1., 1.1, 4), 7, [0, 1, 2, 3, 4, 0, 1], {}, [.2] * 5)]

@pytest.mark.parametrize('n,args,last_n,history,heads,want', DRY)
def test_dry_table(n, args, last_n, history, heads, want):
    s = Dry(*args, last_n, heads)
    for t in history: s.accept(t)
    np.testing.assert_allclose(final(s, *[1 / n] * n).probs, want, atol=1e-5)

def test_dry_scores():
    cases = ((4, 1.1, [0, 1, 2, 0, 1, 2, 0, 1], {}, [0, 0, -1.331, 0]),
             (5, 1.75, [0, 1, 3, 4, 2, 0, 1, 3], {2: [()]}, [0, 0, 0, 0, -1.75]))
    for n, base, history, heads, want in cases:
        s = Dry(1., base, 2, 64, heads)
        for t in history: s.accept(t)
        np.testing.assert_allclose(s.apply(Candidates(np.zeros(n))).logits, want, atol=1e-6)

def test_dry_with_a_long_repetition_does_not_overflow():
    s = Dry(1., 1.75, 2, 4000)
    for t in [1] * 4000: s.accept(t)
    assert s.apply(Candidates(np.zeros(3))).logits[1] < -1e37

@settings(max_examples=100, deadline=None)
@given(st.text('ab', max_size=30))
def test_suffix_matches(h):
    def slow(j): return next((k for k in range(j + 1) if h[j-k] != h[len(h)-1-k]), j + 1)
    assert suffix_matches(h) == [slow(j) for j in range(len(h) - 1)]

def test_dry_recorded(golden, arrays):
    with GGUFFile(shared('models', 'stories260K.gguf')) as f: vocab = Vocab.from_gguf(f)
    cases = apply_cases(golden, ['dry'])
    assert cases
    for case in cases:
        p = case['params']
        s = Dry(p['multiplier'], p['base'], p['allowed_length'], p['last_n'], all_heads(vocab, p['breakers']))
        for t in case['accepted']: s.accept(t)
        x = arrays['logits/' + case['input']]
        c = Candidates(x)
        s.apply(c.sort() if case['input_sorted'] else c)
        same_up_to_ties(c, x, arrays[case['key'] + '/ids'], arrays[case['key'] + '/logits'])

def test_breaker_heads(tiny):
    heads = breaker_heads(tiny, '\n')
    assert all((b'\n' in tiny.piece(t)) == (t in heads) for t in range(len(tiny)))
    assert breaker_heads(tiny, '') == {} and breaker_heads(tiny, 'x' * 99) == breaker_heads(tiny, 'x' * 40)
    tails = breaker_heads(tiny, 'the')
    assert tails[tiny.encode('t')[0]] == [tuple(tiny.encode('he'))]

# ---- samplers with a target ----

@pytest.mark.parametrize('s,logits,ids,sizes', [
    (MirostatV2(5., .1, 42), [3, 2, 1, 0, -1], '1 0 1 0 0 0 0 0', '5 5 5 5 5 5 5 5'),
    (MirostatV2(1., .5, 42), [3, 2, 1, 0, -1], '0 1 0 0 1 0 0 0', '1 2 1 2 2 2 2 2'),
    (Mirostat(1., .5, 42, 5, 100), [3, 2, 1, 0, -1], '1 0 0 1 0 0 0 0', '2 1 2 2 2 2 2 2'),
    (MirostatV2(2., .2, 1), [3, 2, 1, 0, -1], '2 2 0 2 0 0', '3 3 2 3 2 3')], ids=repr)
def test_mirostat_table(s, logits, ids, sizes):
    for _ in range(2):
        got = [(c.token, len(c)) for c in (s.apply(Candidates(logits)) for _ in ids.split())]
        assert got == list(zip(map(int, ids.split()), map(int, sizes.split())))
        s.reset()

def test_adaptive_p_table():
    s, picks, scores = AdaptiveP(.2, .5, 7), [], []
    for _ in range(6):
        c = s.apply(cands(.5, .3, .15, .05))
        picks.append(c.token); scores.append(c.logits)
        s.accept(c.token)
    assert picks == [1, 2, 3, 1, 2, 1]
    np.testing.assert_allclose(scores[0], [0, 4.166667, 4.761905, 3.333333], atol=1e-5)
    np.testing.assert_allclose(scores[1], [-1.282053, 3.333333, 5, 4.166667], atol=1e-5)

def test_adaptive_p_counts_only_what_was_selected_and_accepted():
    s = AdaptiveP(.2, .5, 7)
    c = s.apply(cands(.5, .3, .15, .05))
    twin = s.clone()
    s.accept((c.token + 1) % 4)
    assert (s.ws, s.tw, s.pending) == (.4, 2., None)
    twin.accept(c.token)
    assert twin.tw == 2. and abs(twin.ws - (.3 + .5 * .4)) < 1e-6
    twin.reset()
    assert (twin.ws, twin.tw) == (.4, 2.) and AdaptiveP(.5, 7.).decay == .99

TARGETS = {
    'mirostat': lambda p, seed: Mirostat(p['tau'], p['eta'], seed, 0, p['m']),
    'mirostat_v2': lambda p, seed: MirostatV2(p['tau'], p['eta'], seed),
    'adaptive_p': lambda p, seed: AdaptiveP(p['target'], p['decay'], seed)}

@pytest.mark.parametrize('kind', TARGETS)
def test_draws_with_a_target(golden, arrays, kind):
    cases = [c for c in golden['cases'] if c['kind'] == kind]
    assert cases
    for case in cases:
        x = arrays['logits/' + case['input']]
        for seed, want in case['tokens'].items():
            links = [BUILD[k](**p) for k, p in case['chain']] + [TARGETS[kind](case['params'], int(seed))]
            chain = SamplerChain(links)
            assert [chain.sample(x) for _ in want] == want, (case['params'], case['input'], seed)

def test_adaptive_p_recorded(golden, arrays):
    for case in apply_cases(golden, ['adaptive_p']):
        c = AdaptiveP(**case['params']).apply(Candidates(arrays['logits/' + case['input']]))
        assert c.selected == case['selected']
        np.testing.assert_allclose(c.logits, arrays[case['key'] + '/logits'], atol=1e-4)
        np.testing.assert_allclose(c.probs, arrays[case['key'] + '/p'], atol=1e-5)

ODD = [lambda: MirostatV2(1., .5, 3), lambda: Mirostat(1., .5, 3), lambda: AdaptiveP(.3, .9, 3)]

@pytest.mark.parametrize('make', ODD)
def test_targets_on_odd_rows(make):
    for row in ([], [-np.inf] * 3):
        with np.errstate(all='raise'): assert make().apply(Candidates(row)).token is None
    with np.errstate(all='raise'):
        assert make().apply(Candidates([2.])).token == 0
        assert {make().apply(Candidates([-np.inf, 1, -np.inf, 1])).token for _ in range(9)} <= {1, 3}
    s = make()
    for _ in range(3): s.sample(WAVE)
    twin = s.clone()
    assert text(s, 9) == text(twin, 9)

@pytest.mark.parametrize('changes,want,seed', [
    (dict(mirostat=1, seed=4, repeat_penalty=2.), 'logits -> temp -> mirostat', 4),
    (dict(mirostat=2, seed=4, logit_bias=[(1, 1.)]), 'logits -> logit-bias -> temp -> mirostat-v2', 4),
    (dict(samplers='akp', seed=3), 'logits -> top-k -> top-p -> adaptive-p', 3)])
def test_built_chains_with_a_target(changes, want, seed):
    chain = Sampler.chain(changes)
    assert repr(chain) == want and chain.seed == seed

# ---- infill ----

def test_infill_recorded(golden, arrays):
    with GGUFFile(shared('models', 'stories260K.gguf')) as f: vocab = Vocab.from_gguf(f)
    for case in apply_cases(golden, ['infill']):
        x = arrays['logits/' + case['input']]
        c = Infill(vocab).apply(Candidates(x))
        assert len(c) == case['n_out']
        assert c.ids.tolist() == arrays[case['key'] + '/ids'].tolist()
        np.testing.assert_allclose(c.logits, arrays[case['key'] + '/logits'], atol=1e-5)

def test_infill_on_a_whole_vocabulary(tiny):
    x = np.random.default_rng(0).normal(0, 3, len(tiny)).astype(np.float32)
    assert 1 <= len(Infill(tiny).apply(Candidates(x))) <= 6
    assert Infill(tiny).apply(Candidates([])).size == 0
    with pytest.raises(SamplingError, match='infill needs the vocabulary'): Sampler.chain(samplers='i')

@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=4).map(lambda b: bytes(o % 3 for o in b)), max_size=12))
def test_prefix_pairs(pieces):
    n = range(len(pieces))
    want = [(i, j) for i in n for j in n if i != j and pieces[i] and pieces[j].startswith(pieces[i])]
    assert prefix_pairs(pieces) == want
