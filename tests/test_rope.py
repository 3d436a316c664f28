"Turns: spec 10 section 3.1 and its acceptance values, YaRN by hand"
import math
from types import SimpleNamespace

import numpy as np
import pytest

from llamaref.compute.device import Device
from llamaref.errors import DeviceError, ModelError
from llamaref.layers.rope import Rope, angles, magnitude, read_rope, rope_table, yarn_ramp

@pytest.fixture(scope='module', params=['numpy', 'opencl'])
def device(request):
    try: return Device.get(request.param)
    except DeviceError as e: pytest.skip(str(e))

def turn(dev, x, pos, rope):
    x = np.asarray(x, np.float32)
    x = x.reshape(1, 1, -1) if x.ndim == 1 else x
    return dev.rope(dev.upload(x), dev.upload(rope_table(rope, pos)), rope.neox).numpy()

@pytest.mark.parametrize('x, neox, want', [
    ([1, 0, 1, 0], False, [.5403023, .8414710, .9999500, .0099998]),
    ([1, 1, 0, 0], True, [.5403023, .9999500, .8414710, .0099998])])
def test_acceptance_values(device, x, neox, want):
    np.testing.assert_allclose(turn(device, x, [1], Rope(4, neox=neox))[0, 0], want, atol=1e-6)

@pytest.mark.parametrize('neox', [False, True])
@pytest.mark.parametrize('d', [-900, -3, 5, 4000])
def test_shift_identity(device, neox, d):
    rope, x = Rope(16, neox=neox), np.random.default_rng(0).normal(size=(3, 2, 24)).astype(np.float32)
    p = np.array([1000, 1001, 5000])
    twice = turn(device, x, p, rope)
    twice = device.rope(device.upload(twice), device.upload(rope(np.full(3, d))), neox).numpy()
    np.testing.assert_allclose(twice, turn(device, x, p + d, rope), atol=1e-5)
    np.testing.assert_array_equal(twice[..., 16:], x[..., 16:])      # channels beyond n_rot pass through

def test_frequency_factors_divide():
    plain, slow = Rope(4), Rope(4, factors=(2., 8.))
    np.testing.assert_allclose(angles(slow, [3]), angles(plain, [3]) / [2, 8])

def test_yarn_by_hand():
    "n_rot 64, base 10000, trained on 2048: corr(32) = 8.07.. -> 8? worked out below with the spec's formula"
    rope = Rope(64, yarn=True, freq_scale=.25, n_ctx_orig=2048)
    corr = lambda b: 64 * math.log(2048 / (2 * math.pi * b)) / (2 * math.log(10000))
    lo, hi = math.floor(corr(32)), math.ceil(corr(1))
    assert 0 < lo < hi < 32
    ramp = yarn_ramp(rope)
    assert (ramp[:lo + 1] == 1).all() and (ramp[hi:] == 0).all()
    mid = (lo + hi) // 2
    assert ramp[mid] == pytest.approx(1 - (mid - lo) / (hi - lo))
    a = 7 * 10000 ** (-2 * mid / 64)
    assert angles(rope, [7])[0, mid] == pytest.approx((1 - ramp[mid]) * .25 * a + ramp[mid] * a)
    assert magnitude(rope) == pytest.approx(1 + .1 * math.log(4))

def test_far_positions_stay_exact():
    "cos and sin of position 1,000,000 as mpmath-free double arithmetic gives them, to float32"
    t = rope_table(Rope(8), [1_000_000])
    np.testing.assert_allclose(t[0, 0], [math.cos(1e6), math.sin(1e6)], atol=1e-7)

def gguf(**kv):
    kv = {'x.' + k.replace('rope_', 'rope.', 1): v for k, v in {'context_length': 2048, **kv}.items()}
    return SimpleNamespace(path='f', get=lambda key, kind, default: kv.get(key, default), kv=kv)

@pytest.mark.parametrize('kv, want', [
    ({}, (1., False)), ({'rope_scaling.factor': 4.}, (.25, False)),
    ({'rope_scaling.type': 'none', 'rope_scaling.factor': 4.}, (1., False)),
    ({'rope_scale_linear': 2.}, (.5, False)),
    ({'rope_scaling.type': 'yarn', 'rope_scaling.factor': 4.}, (.25, True))])
def test_scaling_keys(kv, want):
    rope = read_rope(gguf(**kv), 'x', 16, True)
    assert (rope.freq_scale, rope.yarn) == want

@pytest.mark.parametrize('kv, said', [
    ({'rope_scaling.type': 'longrope'}, "'longrope'"), ({'rope_freq_base': 0.}, 'freq_base'),
    ({'rope_freq_base': math.nan}, 'freq_base'), ({'rope_freq_base': math.inf}, 'freq_base'),
    ({'rope_scaling.factor': -1.}, 'scaling.factor'),
    ({'rope_dimension_count': 3}, 'dimension_count'), ({'rope_dimension_count': 0}, 'dimension_count')])
def test_senseless_keys_are_refused_by_name(kv, said):
    with pytest.raises(ModelError, match=said): read_rope(gguf(**kv), 'x', 16, True)

def test_senseless_factors():
    with pytest.raises(ModelError, match='rope_freqs'): read_rope(gguf(), 'x', 4, True, (1., 0.))
