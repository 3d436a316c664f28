"Products and row gather in OpenCL: every format against recorded floats, awkward shapes, bits in any company"
import gguf
import numpy as np
import pytest
from conftest import data

from llamaref.compute.device import Device
from llamaref.errors import DeviceError

FLOATS = 'f32 f16 bf16'.split()
BLOCKS = 'q4_0 q4_1 q5_0 q5_1 q8_0 iq4_nl q2_k q3_k q4_k q5_k q6_k iq4_xs'.split()
TOKENS = (1, 2, 3, 7, 8, 33, 65, 500)


def get_device(**kw):
    try: return Device.get('opencl', **kw)
    except DeviceError as e: pytest.skip(f"no OpenCL device: {e}")

@pytest.fixture(scope='module')
def dev(): return get_device()

@pytest.fixture(scope='module')
def golden():
    "type -> [(bytes, floats), ...]: what llama.cpp quantised, and arbitrary bytes"
    z = np.load(data('golden', 'quants.npz'))
    names = {k.lower(): k for k in z.files}
    pairs = lambda t: [(z[names[f'{t}_{s}bytes']], z[names[f'{t}_{s}floats']]) for s in ('', 'rand_')]
    return {'f32': [(z['x'].view(np.uint8), z['x'])], **{t: pairs(t) for t in FLOATS[1:] + BLOCKS}}

def block(t): return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[t.upper()]]
def bits(a): return np.ascontiguousarray(a).view(np.uint32)

def weights(golden, t, N, K, rng):
    "Bytes and float64 values (N, K), put together from recorded blocks of every kind"
    per, size = block(t)
    raw = np.concatenate([np.ascontiguousarray(b).view(np.uint8).reshape(-1, size) for b, _ in golden[t]])
    val = np.concatenate([f.reshape(-1, per) for _, f in golden[t]])
    ok = np.flatnonzero(np.isfinite(val).all(1) & (abs(val).max(1) < 1e5))
    pick = rng.choice(ok, (N, K // per))
    return raw[pick].reshape(N, -1), val[pick].reshape(N, K).astype(np.float64)

def upload(dev, raw, t, K):
    return dev.upload(np.ascontiguousarray(raw).view(np.uint8).reshape(-1), t, (len(raw), K))

def ids(dev, a): return dev.upload(np.asarray(a, np.int32))

def close(y, x, w, b=0.):
    "Within rounding of the float64 product: relative to the sum of the absolute terms"
    x = x.astype(np.float64)
    room = 1e-6 * (abs(x) @ abs(w).T + abs(b)) + 1e-37
    assert (abs(y - (x @ w.T + b)) <= room).all()


# ---- floats out of blocks ----

@pytest.mark.parametrize('t', FLOATS + BLOCKS)
def test_gather_gives_the_recorded_floats(dev, golden, t):
    for raw, want in golden[t]:
        V, K = want.shape
        w = upload(dev, raw, t, K)
        order = [V - 1, *range(V), 0, 0]
        got = dev.get_rows(w, ids(dev, order)).numpy()
        np.testing.assert_array_equal(bits(got), bits(want[order]))

def test_gather_of_no_row_is_zeros(dev, golden):
    for t in ('f32', 'q8_0', 'q6_k'):
        raw, want = golden[t][0]
        V, K = want.shape
        got = dev.get_rows(upload(dev, raw, t, K), ids(dev, [V, 1, -1, 2**31 - 1])).numpy()
        np.testing.assert_array_equal(got, [0*want[0], want[1], 0*want[0], 0*want[0]])
        assert dev.get_rows(upload(dev, raw, t, K), ids(dev, [])).shape == (0, K)

@pytest.mark.parametrize('K', (1, 8, 20, 172))
@pytest.mark.parametrize('t', FLOATS)
def test_gather_of_any_row_length(dev, t, K):
    a = np.random.default_rng(K).normal(size=(5, K)).astype(np.float32)
    raw, want = {'f32': (a, a), 'f16': (a.astype('f2'), a.astype('f2').astype('f4')),
                 'bf16': ((bits(a) >> 16).astype('u2'), (bits(a) & 0xffff0000).view('f4'))}[t]
    got = dev.get_rows(upload(dev, raw, t, K), ids(dev, [4, 0, 2])).numpy()
    np.testing.assert_array_equal(got, want[[4, 0, 2]])

@pytest.mark.parametrize('t', ('f16', 'bf16'))
def test_every_sixteen_bit_float(dev, t):
    raw = np.arange(65536, dtype=np.uint16)[None]
    want = raw.view(np.float16).astype(np.float32) if t == 'f16' else (raw.astype('u4') << 16).view('f4')
    got = dev.get_rows(upload(dev, raw, t, 65536), ids(dev, [0])).numpy()
    ok = ~np.isnan(want)
    np.testing.assert_array_equal(bits(got)[ok], bits(want)[ok])
    assert np.isnan(got[~ok]).all()

@pytest.mark.parametrize('t', BLOCKS)
def test_extreme_scales(dev, golden, t):
    "Subnormal, smallest, largest and zero scales of either sign; the values by the gguf package"
    raw = golden[t][1][0]
    per, size = block(t)
    at = {'q2_k': (80, 82), 'q3_k': (108,), 'q6_k': (208,)}
    at = at.get(t, (0, 2) if t in ('q4_1', 'q5_1', 'q4_k', 'q5_k') else (0,))
    halves = np.array([0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x0000, 0x8000], '<u2')
    blocks = raw.reshape(-1, size)[:8].copy()
    for a in at: blocks[:, a:a + 2] = np.roll(halves, a)[:, None].view(np.uint8)
    want = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[t.upper()]).astype(np.float32)
    got = dev.get_rows(upload(dev, blocks, t, per), ids(dev, range(8))).numpy()
    np.testing.assert_array_equal(got, want)


# ---- products ----

@pytest.mark.parametrize('t', FLOATS + BLOCKS)
def test_products_of_awkward_shapes_bit_for_bit_in_any_company(dev, golden, t):
    rng = np.random.default_rng(7)
    per = block(t)[0]
    for N in (1, 3, 63, 65):
        for K in (8, 20, 172, 1100) if per == 1 else (per, 3*per, 1056 // per * per + per):
            raw, w = weights(golden, t, N, K, rng)
            x, b = rng.normal(size=(500, K)).astype(np.float32), rng.normal(size=N).astype(np.float32)
            dw, db = upload(dev, raw, t, K), dev.upload(b)
            every = dev.matmul(dev.upload(x), dw, db).numpy()
            close(every, x, w, b)
            for T in TOKENS:
                a = int(rng.integers(0, 501 - T))
                y = dev.matmul(dev.upload(x[a:a + T]), dw, db).numpy()
                np.testing.assert_array_equal(bits(y), bits(every[a:a + T]), err_msg=f'N {N} K {K} T {T}')

def test_no_bias_and_empty_shapes(dev, golden):
    rng = np.random.default_rng(8)
    raw, w = weights(golden, 'q5_0', 9, 64, rng)
    x, dw = rng.normal(size=(4, 64)).astype(np.float32), upload(dev, raw, 'q5_0', 64)
    close(dev.matmul(dev.upload(x), dw).numpy(), x, w)
    assert dev.matmul(dev.upload(x[:0]), dw).shape == (0, 9)
    assert dev.matmul(dev.upload(x), dw.rows(3, 3)).shape == (4, 0)

def test_rows_of_a_weight_and_of_a_batch_as_views(dev, golden):
    rng = np.random.default_rng(9)
    for t in ('q4_0', 'q5_1', 'q6_k', 'bf16'):
        raw, _ = weights(golden, t, 41, 512, rng)
        x, w = dev.upload(rng.normal(size=(9, 512)).astype(np.float32)), upload(dev, raw, t, 512)
        every = dev.matmul(x, w).numpy()
        for a, b in ((1, 2), (5, 12), (7, 41)):
            np.testing.assert_array_equal(bits(dev.matmul(x, w.rows(a, b)).numpy()), bits(every[:, a:b]))
        np.testing.assert_array_equal(bits(dev.matmul(x.rows(3, 5), w).numpy()), bits(every[3:5]))

@pytest.mark.parametrize('t', ('q4_1', 'q6_k', 'f16'))
def test_any_number_of_threads_gives_the_same_bits(dev, golden, t):
    rng, one = np.random.default_rng(10), get_device(n_threads=1)
    raw, _ = weights(golden, t, 101, 256, rng)
    x = rng.normal(size=(11, 256)).astype(np.float32)
    y = [d.matmul(d.upload(x), upload(d, raw, t, 256)).numpy() for d in (dev, one)]
    np.testing.assert_array_equal(bits(y[0]), bits(y[1]))

def test_large_and_small_numbers_together(dev):
    "Nothing flushes subnormals, nothing overflows before the definition does"
    x = np.array([[1e-30, 1e30, 1, 0] * 16, [2e-42, 0, 0, 0] * 16], np.float32)
    w = np.array([[1e-8, 1e-8, 1, 5] * 16, [0.5, 1e6, 0, 1] * 16], np.float32)
    y = dev.matmul(dev.upload(x), dev.upload(w)).numpy()
    close(y, x, w.astype(np.float64))
    np.testing.assert_allclose(y[1, 1], 16 * 0.5 * float(x[1, 0]), rtol=2e-3)   # the products are subnormal

def test_infinity_and_nan_stay_in_their_rows(dev, golden):
    rng = np.random.default_rng(11)
    raw, _ = weights(golden, 'q8_0', 20, 96, rng)
    x = rng.normal(size=(6, 96)).astype(np.float32)
    dw = upload(dev, raw, 'q8_0', 96)
    good = dev.matmul(dev.upload(x), dw).numpy()
    x[2, 5], x[4, 0] = np.nan, np.inf
    bad = dev.matmul(dev.upload(x), dw).numpy()
    assert np.isnan(bad[2]).all() and not np.isfinite(bad[4]).any()
    np.testing.assert_array_equal(bits(bad[[0, 1, 3, 5]]), bits(good[[0, 1, 3, 5]]))


# ---- other builds of the same source ----

def run_build(dev, file, out, args, defs):
    "Build a kernel file with options of our own and run it in five groups"
    import pyopencl as cl
    kernel = cl.Kernel(dev.program(file, defs), file)
    plain = lambda a: np.int32(a) if isinstance(a, int) else a if a is None else a.handle
    kernel.set_args(*map(plain, (*args, out)))
    cl.enqueue_nd_range_kernel(dev.queue, kernel, (5,), (1,))
    dev.sync()
    return out.numpy()

@pytest.mark.parametrize('t', 'f16 q4_1 q5_1 iq4_nl q2_k q3_k q6_k iq4_xs'.split())
def test_gather_without_special_instructions(dev, golden, t):
    "What a compiler without F16C, SSSE3 and AVX-512 sees gives the same floats"
    raw, want = golden[t][-1]
    V, K = want.shape
    args = (V, V, K, upload(dev, raw, t, K), ids(dev, range(V)))
    got = run_build(dev, 'get_rows', dev.empty((V, K)), args, (f'-DWTYPE_{t.upper()}', '-DPLAIN'))
    np.testing.assert_array_equal(bits(got), bits(want))

SMALL = ('-DVL=8', '-DTROWS=2', '-DTTOKS=3', '-DKCHUNK=256', '-DTCHUNK=7')

@pytest.mark.parametrize('defs', (('-DPLAIN',), ('-DVL=16',), SMALL))
def test_products_in_other_shapes_of_the_tile(dev, golden, defs):
    rng = np.random.default_rng(12)
    raw, w = weights(golden, 'q3_k', 13, 768, rng)
    x = rng.normal(size=(17, 768)).astype(np.float32)
    args = (17, 13, 768, dev.upload(x), upload(dev, raw, 'q3_k', 768), None)
    y = run_build(dev, 'matmul', dev.empty((17, 13)), args, ('-DWTYPE_Q3_K', *defs))
    close(y, x, w)
    vl = [d for d in defs if 'VL' in d] or ['-DVL=8']
    same = run_build(dev, 'matmul', dev.empty((17, 13)), args, ('-DWTYPE_Q3_K', *vl))
    np.testing.assert_array_equal(bits(y), bits(same))
