"Block formats: spec 10 section 2, bit for bit against golden blocks, and by hand"

import numpy as np
import pytest
from conftest import data, real
from gguf import GGMLQuantizationType, quants as peer

from llamaref.errors import GGUFError
from llamaref.files.gguf import GGMLType, GGUFFile, as_type, block_of
from llamaref.files.quants import DEQUANT, as_array, dequantize, quantize

GOLDEN = np.load(data('golden', 'quants.npz'))
TYPES = 'f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q2_K q3_K q4_K q5_K q6_K iq4_nl iq4_xs'.split()
OURS = TYPES[2:]


def same_bits(a, b):
    assert a.dtype == b.dtype == np.float32 and a.shape == b.shape
    assert np.array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize('kind', ['', 'rand_'])
@pytest.mark.parametrize('t', TYPES)
def test_golden_floats_bit_for_bit(t, kind):
    same_bits(dequantize(GOLDEN[f'{t}_{kind}bytes'], t), GOLDEN[f'{t}_{kind}floats'])


@pytest.mark.parametrize('t', OURS)
def test_no_format_of_the_table_is_left_to_the_package(t):
    assert as_type(t) in DEQUANT


# The example of spec 10, section 2: where the floats lie, and how many bytes of body around them.
EXAMPLE = [  # type, layout, first 4, second pair, last, sum
    ('Q4_0', 'd 16', (1.5, -4, -1.5, 1), (-4, -2.5), -2.5, -15.5),
    ('Q4_1', 'd m 16', (5.75, 0.25, 2.75, 5.25), (0.25, 1.75), 1.75, 120.5),
    ('Q5_0', 'd 20', (7.5, 2, -3.5, 7), (4.5, -2), -2, -21.5),
    ('Q5_1', 'd m 20', (15.75, 10.25, 4.75, 15.25), (12.75, 6.25), 6.25, 242.5),
    ('Q8_0', 'd 32', (5.5, 24, 42.5, 61), (45.5, -64), -61, 8),
    ('IQ4_NL', 'd 16', (19, -63.5, -17.5, 12.5), (-63.5, -32.5), -32.5, -207.5),
    ('Q2_K', '80 d m', (16.5, 0, 5.5, 11), (3.75, -1.25), 2.25, 1029.5),
    ('Q3_K', '108 d', (40.5, -54, 13.5, -27), (-11, 22), 21, 479),
    ('Q4_K', 'd m 140', (30.75, 58.25, -2.25, 25.25), (287, 335), 15.5, 22252),
    ('Q5_K', 'd m 172', (118.75, 58.25, 85.75, 25.25), (527, 191), 105.5, 46164),
    ('Q6_K', '208 d', (-715.5, 848, 291.5, -265), (115.5, -336), -30, 2306),
    ('IQ4_XS', 'd 134', (136.5, 934.5, -682.5, 10.5), (32.5, 222.5), 490, 7933),
]


@pytest.mark.parametrize('t, layout, first, second, last, total', EXAMPLE, ids=[e[0] for e in EXAMPLE])
def test_acceptance_table(t, layout, first, second, last, total):
    parts = {'d': np.float16(0.5).tobytes(), 'm': np.float16(0.25).tobytes()}
    block = b''.join(
        parts.get(p) or bytes((37 * i + 11) % 256 for i in range(int(p))) for p in layout.split()
    )
    x = dequantize(np.frombuffer(block, np.uint8), t)
    k = 16 if x.size == 32 else 32
    assert tuple(x[:4]) == first and x[-1] == last and x.sum(dtype=np.float64) == total
    assert tuple(x[k : k + 2]) == second


def test_acceptance_quantisers():
    x = np.linspace(-1, 1, 32, dtype=np.float32)
    assert (
        quantize(x, 'q8_0').tobytes().hex()
        == '08208189919aa2aab2bac3cbd3dbe3ecf4fc040c141d252d353d464e565e666f777f'
    )
    assert quantize(x, 'q4_0').tobytes().hex() == '0030809191a2a2b3b3c4c4d5d5e6e6f7f7f8'


@pytest.mark.parametrize('t', ['f16', 'bf16', 'q8_0'])
def test_golden_bytes(t):
    assert np.array_equal(quantize(GOLDEN['x'], t), GOLDEN[f'{t}_bytes'])


@pytest.mark.parametrize('t', ['q4_0', 'q4_1', 'q5_0', 'q5_1'])
def test_golden_bytes_through_the_package(t):
    "Equal but for the sign of a zero scale in the row that has -0.0"
    names = list(GOLDEN['row_names'])
    keep = [i for i, n in enumerate(names) if n != 'zero_blocks']
    ours = quantize(GOLDEN['x'], t)
    assert np.array_equal(ours[keep], GOLDEN[f'{t}_bytes'][keep]) and len(keep) == len(names) - 1
    assert np.array_equal(dequantize(ours, t), GOLDEN[f'{t}_floats'])


def peer_types():
    "Formats that the gguf package can dequantise"
    found = []
    for t in GGMLType:
        try:
            peer.dequantize(np.zeros(t.n_bytes, np.uint8), GGMLQuantizationType(int(t)))
        except (NotImplementedError, KeyError, ValueError):
            continue
        found.append(t.name)
    return found


@pytest.mark.parametrize('t', peer_types())
def test_random_blocks_as_the_gguf_package(t):
    rng = np.random.default_rng(0)
    b = rng.integers(0, 256, (3, 4 * block_of(t)[1]), np.uint8)
    with np.errstate(all='ignore'):
        theirs = peer.dequantize(b, GGMLQuantizationType(int(as_type(t)))).astype(np.float32)
        ours = dequantize(b, t)
    assert ours.shape == theirs.shape and np.array_equal(ours, theirs, equal_nan=True)


@pytest.mark.parametrize('t', ['Q8_1', 'Q8_K'])
def test_formats_that_never_reach_a_file(t):
    with pytest.raises(GGUFError, match=f'{t} cannot be dequantised'):
        dequantize(np.zeros(block_of(t)[1], np.uint8), t)


def test_shapes():
    b = np.zeros((2, 3, 4 * 18), np.uint8)
    assert dequantize(b, 'q4_0').shape == (2, 3, 128) and dequantize(b[0, 0], GGMLType.Q4_0).shape == (128,)
    assert dequantize(np.zeros((0, 18), np.uint8), 'q4_0').shape == (0, 32)
    assert dequantize(b[:, ::2], 'q4_0').shape == (2, 2, 128)  # not contiguous


def test_more_blocks_than_fit_a_step():
    x = np.random.default_rng(1).normal(size=(5000, 64)).astype('f4')
    b = quantize(x, 'q8_0')
    same_bits(dequantize(b, 'q8_0'), np.concatenate([dequantize(r, 'q8_0')[None] for r in b]))


def test_plain_types():
    x = np.array([[1, -2, 3]], np.float32)
    for t, c in (
        ('f32', '<f4'),
        ('f16', '<f2'),
        ('f64', '<f8'),
        ('i8', 'i1'),
        ('i16', '<i2'),
        ('i32', '<i4'),
        ('i64', '<i8'),
    ):
        b = quantize(x, t)
        assert b.tobytes() == x.astype(c).tobytes() and np.array_equal(dequantize(b, t), x)


def test_f32_is_a_view():
    b = np.zeros(8, np.uint8)
    assert np.shares_memory(dequantize(b, 'f32'), b)


def test_as_array_keeps_integers(tmp_path):
    from llamaref.files.writer import write_gguf

    d2t = np.array([5, 2**40, -1])
    write_gguf(tmp_path / 'm.gguf', {}, {'d2t': d2t, 's': np.array(2, np.float32)})
    f = GGUFFile(tmp_path / 'm.gguf')
    assert as_array(f.tensor('d2t')).dtype == np.int64 and np.array_equal(as_array(f.tensor('d2t')), d2t)
    assert as_array(f.tensor('s')).shape == () and as_array(f.tensor('s')) == 2


@pytest.mark.parametrize('t, n', [('q4_0', 17), ('q4_k', 143), ('f32', 5), ('bf16', 3)])
def test_a_row_of_half_a_block(t, n):
    with pytest.raises(GGUFError, match=f'a row of {n} bytes is no multiple'):
        dequantize(np.zeros(n, np.uint8), t)


@pytest.mark.parametrize(
    't, words',
    [
        ('q4_k', 'cannot quantise to Q4_K; possible: F32 F16 BF16 Q8_0'),
        ('tq1_0', 'cannot quantise to TQ1_0'),
        ('q9_9', 'unknown ggml type'),
    ],
)
def test_formats_that_cannot_be_written(t, words):
    with pytest.raises(GGUFError, match=words):
        quantize(np.zeros(256, 'f4'), t)


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_blocks_of_what_is_no_number(bad):
    with pytest.raises(GGUFError, match='nan or infinite'):
        quantize(np.full(32, bad, 'f4'), 'q8_0')


def test_f16_and_bf16_keep_what_is_no_number():
    x = np.array([np.nan, np.inf, -np.inf, 1e38, -0.0], np.float32)
    assert np.array_equal(
        dequantize(quantize(x, 'f16'), 'f16'), [np.nan, np.inf, -np.inf, np.inf, 0], equal_nan=True
    )
    back = dequantize(quantize(x, 'bf16'), 'bf16')
    assert np.isnan(back[0]) and np.array_equal(back[1:3], x[1:3]) and np.signbit(back[4])


def test_bf16_of_every_sort_of_nan_stays_a_nan():
    u = np.array([0x7F800001, 0x7FC00000, 0xFFFFFFFF, 0x7FFFFFFF, 0xFF800001], np.uint32)
    assert np.isnan(dequantize(quantize(u.view(np.float32), 'bf16'), 'bf16')).all()


def test_bf16_rounds_ties_to_even():
    "1 + 2^-8 lies between 1 and 1 + 2^-7; 1 + 3*2^-8 between 1 + 2^-7 and 1 + 2^-6"
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], np.float32)
    assert dequantize(quantize(x, 'bf16'), 'bf16').tolist() == [1, 1 + 2**-6, 1 + 2**-7]


def test_q8_0_rounds_halves_away_from_zero():
    "With a largest weight of 127 the scale is 1, so 0.5 -> 1 and -2.5 -> -3"
    x = np.zeros(32, np.float32)
    x[:5] = 127, 0.5, -0.5, 2.5, -2.5
    assert quantize(x, 'q8_0')[2:7].view(np.int8).tolist() == [127, 1, -1, 3, -3]


def test_q8_0_of_zeros():
    assert not quantize(np.zeros(32, 'f4'), 'q8_0').any()


@pytest.mark.parametrize('size', [1e-45, 1e-40, 1e-38, 1e-30, 1e-7, 1e4])
def test_q8_0_of_tiny_and_large(size):
    "No warning, no nan, whatever the size; within half a step where a half float can hold the scale"
    x = (np.random.default_rng(0).normal(size=64) * size).astype('f4')
    with np.errstate(all='raise', under='ignore'):
        back = dequantize(quantize(x, 'q8_0'), 'q8_0')
    assert np.isfinite(back).all() and np.abs(back - x).max() <= np.abs(x).max() * (
        0.6 / 127 if size > 1 else 1
    )


@pytest.mark.real
def test_real_models_as_the_gguf_package():
    "The first rows of one tensor of each format"
    for name in ('SmolLM2-135M-Instruct.Q4_1.gguf', 'gemma-3-270m-q4_k_m.gguf'):
        seen = {t.type: t for t in GGUFFile(real(name)).tensors.values()}
        for t in seen.values():
            b = t.data.reshape(t.shape[0], -1)[:8] if len(t.shape) > 1 else t.data[None]
            same_bits(
                dequantize(b, t.type),
                peer.dequantize(np.ascontiguousarray(b), GGMLQuantizationType(int(t.type))).astype(
                    np.float32
                ),
            )
