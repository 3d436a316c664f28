"The GGUF reader and writer: spec 10 section 1, against the gguf package and by hand"

import os
import struct
import time

import numpy as np
import pytest
from conftest import ROOT, data, real, shared

from llamaref.errors import GGUFError, LlamarefError
from llamaref.files.gguf import GGMLType, GGUFFile, KVType, as_type, block_of, row_bytes
from llamaref.files.writer import merge_gguf, split_gguf, write_gguf

SHIPPED = sorted(p.name for p in data('models').glob('*.gguf'))
GOLDEN = sorted(
    str(p.relative_to(ROOT.parent / 'shared/data')) for p in (ROOT.parent / 'shared/data').glob('*/*.gguf')
)


def text(s):
    return struct.pack('<Q', len(s)) + s


def u32(v):
    return struct.pack('<I', v)


def u64(v):
    return struct.pack('<Q', v)


def kv(key, type, value):
    return text(key) + u32(type) + value


def info(name, dims, type=0, offset=0):
    return text(name) + u32(len(dims)) + b''.join(map(u64, dims)) + u32(type) + u64(offset)


def build(keys=(), infos=(), data=b'', magic=b'GGUF', version=3, align=32, n_kv=None, n_tensors=None):
    "A file from its raw parts, right or wrong"
    head = magic + u32(version) + u64(len(infos) if n_tensors is None else n_tensors)
    head += u64(len(keys) if n_kv is None else n_kv) + b''.join(keys) + b''.join(infos)
    return head + bytes(-len(head) % align) + data


def refuse(raw, *words):
    "The reader's error, which must contain all of the words, and the file"
    with pytest.raises(GGUFError) as e:
        GGUFFile(raw)
    for w in words:
        assert w in str(e.value)
    assert str(e.value).startswith('<bytes>: byte ')
    return str(e.value)


# ---- good files


def same_as_peer(path):
    "Everything the gguf package's reader finds, we find, and equal"
    from gguf import GGUFReader

    peer, ours = GGUFReader(path), GGUFFile(path)
    fields = [f for f in peer.fields.values() if not f.name.startswith('GGUF.')]
    assert list(ours.kv) == [f.name for f in fields]
    for f in fields:
        types, value = ours.kv_types[f.name], ours.kv[f.name]
        if len(f.types) == 1 and types[0] == KVType.ARRAY:
            assert len(value) == 0  # the peer forgets an empty array's type
        else:
            assert [int(t) for t in types] == [int(t) for t in f.types]
        if types[0] != KVType.ARRAY:
            assert value == f.contents()
        elif types[1] == KVType.STRING:
            assert value == [bytes(f.parts[i]) for i in f.data]
        else:
            assert value.tolist() == f.contents()
    assert ours.data_offset == peer.data_offset and ours.alignment == peer.alignment
    assert list(ours.tensors) == [t.name for t in peer.tensors]
    for t in peer.tensors:
        o = ours.tensors[t.name]
        assert o.shape == tuple(int(d) for d in t.shape[::-1]) and int(o.type) == int(t.tensor_type)
        assert (o.offset, o.n_bytes) == (t.data_offset, t.n_bytes)
        assert np.array_equal(o.data, np.ascontiguousarray(t.data).reshape(-1).view(np.uint8))


@pytest.mark.parametrize('name', SHIPPED)
def test_shipped_models_as_the_gguf_package_reads_them(name):
    same_as_peer(data('models', name))


@pytest.mark.parametrize('name', [n for n in GOLDEN if n.startswith('models')])
def test_golden_models_as_the_gguf_package_reads_them(name):
    same_as_peer(shared(*name.split('/')))


@pytest.mark.parametrize('name', [n for n in GOLDEN if n.startswith('vocabs')])
def test_vocabulary_without_tensors(name):
    f = GGUFFile(shared(*name.split('/')))
    assert f.tensors == {} and len(f.get('tokenizer.ggml.tokens', list[str])) == len(
        f.get('tokenizer.ggml.token_type', list[int])
    )


def test_acceptance_stories260k():
    f = GGUFFile(shared('models', 'stories260K.gguf'))
    assert (f.version, len(f.tensors), len(f.kv), f.data_offset) == (3, 48, 19, 14176)
    assert f.tensor('token_embd.weight').shape == (512, 64)


@pytest.mark.real
def test_acceptance_smollm2():
    f = GGUFFile(real('SmolLM2-135M-Instruct.Q4_1.gguf'))
    assert (len(f.tensors), len(f.kv), f.data_offset) == (272, 33, 1785664)
    assert 'output.weight' not in f.tensors and f.tensor('token_embd.weight').type == GGMLType.Q8_0


@pytest.mark.real
def test_acceptance_gemma3():
    f = GGUFFile(real('gemma-3-270m-q4_k_m.gguf'))
    assert (len(f.tensors), len(f.kv), f.data_offset) == (236, 33, 6525120)
    q = f.tensor('blk.1.attn_q.weight')
    assert q.shape == (1024, 640) and q.type == GGMLType.Q5_0
    kinds = [t.type.name for t in f.tensors.values()]
    assert {k: kinds.count(k) for k in set(kinds)} == dict(F32=109, Q5_0=81, Q4_K=27, Q8_0=10, Q6_K=9)


def test_a_minimal_file():
    f = GGUFFile(build())
    assert (f.version, f.kv, f.tensors, f.alignment, f.data_offset) == (3, {}, {}, 32, 32)


def test_version_2_has_the_same_layout():
    f = GGUFFile(build([kv(b'k', 4, u32(7))], [info(b'x', [2])], bytes(32), version=2))
    assert (f.version, f.kv) == (2, {'k': 7}) and f.tensor('x').shape == (2,)


def test_every_scalar_type():
    cases = [
        (0, '<B', 200),
        (1, '<b', -3),
        (2, '<H', 60000),
        (3, '<h', -30000),
        (4, '<I', 2**32 - 1),
        (5, '<i', -(2**31)),
        (6, '<f', 0.5),
        (7, '<B', 1),
        (10, '<Q', 2**64 - 1),
        (11, '<q', -(2**63)),
        (12, '<d', 0.1),
    ]
    f = GGUFFile(build([kv(b'k%d' % t, t, struct.pack(c, v)) for t, c, v in cases]))
    assert list(f.kv.values()) == [v if t != 7 else True for t, _, v in cases]
    assert f.kv['k7'] is True and [int(t[0]) for t in f.kv_types.values()] == [c[0] for c in cases]


def test_every_array_type():
    cases = [
        (0, '<u1', [1, 255]),
        (1, '<i1', [-1, 2]),
        (2, '<u2', [65535]),
        (3, '<i2', [-5]),
        (4, '<u4', [1, 2, 3]),
        (5, '<i4', [-9]),
        (6, '<f4', [0.5, -0.5]),
        (7, '?', [True, False]),
        (10, '<u8', [2**64 - 1]),
        (11, '<i8', [-(2**63)]),
        (12, '<f8', [0.1]),
    ]
    arrays = [u32(t) + u64(len(v)) + np.array(v, c).tobytes() for t, c, v in cases]
    f = GGUFFile(build([kv(b'k%d' % c[0], 9, a) for c, a in zip(cases, arrays)]))
    for (_, c, v), got in zip(cases, f.kv.values()):
        assert got.dtype == np.dtype(c) and got.tolist() == v


def test_empty_arrays():
    f = GGUFFile(build([kv(b's', 9, u32(8) + u64(0)), kv(b'i', 9, u32(5) + u64(0))]))
    assert f.kv['s'] == [] and f.kv['i'].shape == (0,)


def test_strings_need_not_be_utf8():
    f = GGUFFile(build([kv(b'k\xff', 8, text(b'caf\xe9')), kv(b'a', 9, u32(8) + u64(1) + text(b'\xe2\x96'))]))
    assert f.kv == {'k\udcff': 'caf\udce9', 'a': [b'\xe2\x96']}


def test_scalar_tensor_and_four_dimensions():
    f = GGUFFile(build([], [info(b's', []), info(b'x', [1, 2, 3, 4], offset=32)], bytes(32 + 96)))
    assert f.tensor('s').shape == () and f.tensor('s').n_bytes == 4
    assert f.tensor('x').shape == (4, 3, 2, 1) and f.tensor('x').n_bytes == 96


def test_own_alignment():
    f = GGUFFile(
        build(
            [kv(b'general.alignment', 4, u32(128))],
            [info(b'a', [1]), info(b'b', [1], offset=128)],
            bytes(256),
            align=128,
        )
    )
    assert f.alignment == 128 and f.data_offset % 128 == 0
    assert f.tensor('b').offset - f.tensor('a').offset == 128


def test_views_copy_nothing_and_cannot_be_written():
    f = GGUFFile(data('models', 'rnd-llama.gguf'))
    a, b = f.tensor('token_embd.weight'), f.tensor('output_norm.weight')
    assert a.data.base is b.data.base is not None and a.data.ndim == 1 and a.data.dtype == np.uint8
    with pytest.raises(ValueError):
        a.data[0] = 1


def test_views_survive_close():
    with GGUFFile(data('models', 'rnd-llama.gguf')) as f:
        w = f.tensor('output_norm.weight').data
    assert f.tensors == {} and np.isfinite(w.view('<f4')).all()


def test_a_large_vocabulary_parses_fast():
    "150,000 tokens and as many merges: well under a second of work"
    words = b''.join(text(b'token %d' % i) for i in range(150_000))
    raw = build(
        [kv(b'tokens', 9, u32(8) + u64(150_000) + words), kv(b'merges', 9, u32(8) + u64(150_000) + words)]
    )
    t = time.process_time()
    f = GGUFFile(raw)
    assert time.process_time() - t < 1
    assert len(f.kv['tokens']) == 150_000 and f.kv['merges'][-1] == b'token 149999'


# ---- what a reader must refuse: every row of the table


@pytest.mark.parametrize('magic', [b'GGML', b'GGUG', b'gguf', bytes(4), b'FUGG'])
def test_wrong_magic(magic):
    refuse(build(magic=magic), 'byte 0', 'invalid magic', "expected 'GGUF'")


@pytest.mark.parametrize(
    'version, words',
    [
        (0, ['bad']),
        (1, ['no longer supported']),
        (4, ['too new']),
        (99, ['too new']),
        (3 << 24, ['endianness']),
        (2 << 16, ['endianness']),
    ],
)
def test_bad_version(version, words):
    refuse(build(version=version), 'byte 4', 'version', *words)


def test_empty_key_in_45_bytes():
    raw = build([kv(b'', 8, text(b'x'))])[:45]
    assert len(raw) == 45
    refuse(raw, 'key is empty')


def test_duplicate_key():
    refuse(build([kv(b'a', 4, u32(1)), kv(b'a', 4, u32(2))]), "duplicate key 'a'")


@pytest.mark.parametrize('t', [13, 99, 2**32 - 1])
def test_unknown_kv_type(t):
    refuse(build([kv(b'a', t, u64(0))]), f'invalid GGUF type {t}', "'a'")


@pytest.mark.parametrize('t', [13, 99])
def test_unknown_element_type(t):
    refuse(build([kv(b'a', 9, u32(t) + u64(0))]), f'invalid GGUF type {t}', 'element type')


@pytest.mark.parametrize('depth', [1, 50])
def test_nested_array(depth):
    value = u32(4) + u64(0)
    for _ in range(depth):
        value = u32(9) + u64(1) + value
    refuse(build([kv(b'a', 9, value)]), 'invalid GGUF type', 'array of arrays')


@pytest.mark.parametrize('a', [0, 3, 24, 48, 2**32 - 1])
def test_alignment_no_power_of_two(a):
    refuse(build([kv(b'general.alignment', 4, u32(a))]), 'general.alignment', 'power of two')


@pytest.mark.parametrize(
    't, value',
    [
        (5, u32(32)),
        (10, u64(32)),
        (8, text(b'32')),
        (6, struct.pack('<f', 32)),
        (9, u32(4) + u64(1) + u32(32)),
    ],
)
def test_alignment_not_u32(t, value):
    refuse(build([kv(b'general.alignment', t, value)]), 'general.alignment', 'expected u32')


def test_tensor_name_of_64_bytes():
    refuse(build([], [info(b'x' * 64, [8])], bytes(32)), 'too long', '63')
    assert 'x' * 63 in GGUFFile(build([], [info(b'x' * 63, [8])], bytes(32))).tensors


def test_duplicate_tensor_name():
    refuse(build([], [info(b'x', [8]), info(b'x', [8], offset=32)], bytes(64)), "duplicate tensor name 'x'")


@pytest.mark.parametrize('n', [5, 2**32 - 1])
def test_too_many_dimensions(n):
    refuse(build([], [text(b'x') + u32(n) + 5 * u64(1) + u32(0) + u64(0)], bytes(32)), 'shape', 'at most 4')


@pytest.mark.parametrize(
    'dims', [[2**63], [2**64 - 1], [0], [4, 0], [2**62, 2], [2**32, 2**31], [2**16] * 4, [2**31, 2**31, 2, 1]]
)
def test_shapes_that_make_no_sense(dims):
    refuse(build([], [info(b'x', dims)], bytes(32)), 'shape')


@pytest.mark.parametrize(
    'dims, type', [([2**62], 0), ([2**61], 28), ([2**62 // 32 * 32], 2), ([2**58, 16], 0), ([2**60], 30)]
)
def test_bytes_that_wrap_to_a_small_number(dims, type):
    "The element count fits 63 bits; the bytes do not, and would be 0 or so modulo 2^64"
    refuse(build([], [info(b'x', dims, type)], bytes(32)), 'truncated file')


@pytest.mark.parametrize('t', [4, 5, 31, 32, 33, 36, 38, 200, 2**32 - 1])
def test_unknown_ggml_type(t):
    refuse(build([], [info(b'x', [256], t)], bytes(1024)), f'unknown ggml type {t}')


@pytest.mark.parametrize('t, n', [(2, 31), (2, 48), (8, 1), (12, 128), (23, 32), (41, 64)])
def test_row_no_multiple_of_the_block(t, n):
    refuse(build([], [info(b'x', [n, 256], t)], bytes(65536)), 'block size')


@pytest.mark.parametrize('off', [0, 31, 33, 64, 2**64 - 1, 2**63])
def test_offset_is_not_the_running_sum(off):
    refuse(
        build([], [info(b'a', [8]), info(b'b', [8], offset=off)], bytes(256)),
        "offset of 'b'",
        f'{off}, expected 32',
    )


def test_offset_off_by_32():
    refuse(build([], [info(b'a', [8], offset=32)], bytes(256)), 'offset', '32, expected 0')


def test_two_tensors_may_not_overlap_by_a_wrapping_offset():
    refuse(build([], [info(b'a', [2**61]), info(b'b', [8], offset=2**63)], bytes(64)), 'truncated')


@pytest.mark.parametrize('cut', [1, 31, 32, 63])
def test_data_shorter_than_the_padded_sizes(cut):
    raw = build([], [info(b'a', [8]), info(b'b', [1], offset=32)], bytes(64))
    assert GGUFFile(raw).tensor('b').n_bytes == 4
    refuse(raw[:-cut], 'truncated file')


LIES = [
    (build(n_kv=2**63), ['kv_count']),
    (build(n_tensors=2**63), ['tensor_count']),
    (build(n_kv=2**40), ['1099511627776']),
    (build([kv(b'a', 8, u64(2**63))]), ["'a'"]),
    (build([kv(b'a', 8, u64(2**64 - 1))]), ["'a'"]),
    (build([kv(b'a', 9, u32(8) + u64(2**60))]), ["'a'"]),
    (build([kv(b'a', 9, u32(0) + u64(2**40))]), ["'a'"]),
    (build([kv(b'a', 9, u32(10) + u64(2**61))]), ["'a'"]),
    (build([text(b'a')[:8]]), ['kv_count']),
    (build([], [u64(2**64 - 1)]), ['tensor']),
    (build([kv(b'a', 9, u32(8) + u64(2) + text(b'ok') + u64(99))]), ["'a'[1]"]),
]


@pytest.mark.parametrize('i', range(len(LIES)))
def test_a_length_is_not_believed(i):
    refuse(LIES[i][0], 'truncated', *LIES[i][1])


def test_errors_print_anywhere():
    "A name from the file is escaped and cut, however wild"
    m = refuse(build([kv(b'\xff\x1b[31m' + b'x' * 10_000, 99, b'')]), 'invalid GGUF type')
    m.encode('ascii')
    assert len(m) < 300 and '\x1b' not in m


# ---- paths


def test_errors_name_the_file(tmp_path):
    p = tmp_path / 'm.gguf'
    p.write_bytes(b'GGML' + bytes(20))
    with pytest.raises(GGUFError, match='m.gguf: byte 0, magic'):
        GGUFFile(p)
    assert issubclass(GGUFError, LlamarefError)


@pytest.mark.parametrize('raw, words', [(b'', 'truncated'), (b'G', 'truncated'), (b'GGUF', 'version')])
def test_tiny_files(tmp_path, raw, words):
    (tmp_path / 'm.gguf').write_bytes(raw)
    with pytest.raises(GGUFError, match=words):
        GGUFFile(tmp_path / 'm.gguf')


def test_no_file(tmp_path):
    with pytest.raises(GGUFError, match='cannot be opened'):
        GGUFFile(tmp_path / 'none.gguf')
    with pytest.raises(GGUFError, match='not a regular file'):
        GGUFFile(tmp_path)


@pytest.mark.skipif(not hasattr(os, 'mkfifo'), reason='no named pipes here')
def test_a_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    with pytest.raises(GGUFError, match='not a regular file'):
        GGUFFile(tmp_path / 'pipe')


# ---- looking things up

FACTS = GGUFFile(
    build(
        [
            kv(b'general.architecture', 8, text(b'llama')),
            kv(b'u8', 0, b'\7'),
            kv(b'i64', 11, struct.pack('<q', -7)),
            kv(b'f', 6, struct.pack('<f', 0.5)),
            kv(b'b', 7, b'\1'),
            kv(b's', 8, text(b'yes')),
            kv(b'ai', 9, u32(5) + u64(1) + u32(3)),
            kv(b'as', 9, u32(8) + u64(1) + text(b'x')),
        ],
        [info(b'w', [2, 3])],
        bytes(32),
    )
)


@pytest.mark.parametrize(
    'key, kind, want',
    [
        ('u8', int, 7),
        ('i64', int, -7),
        ('f', float, 0.5),
        ('b', bool, True),
        ('s', str, 'yes'),
        ('as', list, [b'x']),
        ('as', list[str], [b'x']),
        ('u8', (int, list), 7),
        ('u8', None, 7),
    ],
)
def test_get(key, kind, want):
    assert FACTS.get(key, kind) == want


def test_get_an_array():
    assert FACTS.get('ai', list[int]).tolist() == [3]


@pytest.mark.parametrize(
    'key, kind, have, want',
    [
        ('u8', float, 'u8', 'float'),
        ('f', int, 'f32', 'int'),
        ('b', int, 'bool', 'int'),
        ('u8', bool, 'u8', 'bool'),
        ('s', int, 'str', 'int'),
        ('i64', str, 'i64', 'str'),
        ('ai', int, r'arr\[i32\]', 'int'),
        ('u8', list, 'u8', 'list'),
        ('ai', list[str], r'arr\[i32\]', r'list\[str\]'),
        ('s', (int, float), 'str', 'int or float'),
    ],
)
def test_get_is_strict_about_kinds(key, kind, have, want):
    with pytest.raises(GGUFError, match=f'key {key} has wrong type {have} but expected type {want}'):
        FACTS.get(key, kind)


def test_get_absent():
    assert FACTS.get('none', int, 5) == 5 and FACTS.get('none', int, default=None) is None
    with pytest.raises(GGUFError, match='key not found in model: none'):
        FACTS.get('none', int)


def test_default_does_not_hide_a_wrong_type():
    with pytest.raises(GGUFError, match='wrong type'):
        FACTS.get('s', int, 5)


def test_arch():
    assert FACTS.arch == 'llama'
    with pytest.raises(GGUFError, match='key not found in model: general.architecture'):
        GGUFFile(build()).arch


def test_tensor_lookup():
    assert FACTS.tensor('w', (3, 2)).n_bytes == 24
    with pytest.raises(GGUFError, match="missing tensor 'v'"):
        FACTS.tensor('v')
    with pytest.raises(GGUFError, match=r"'w' has shape \(3, 2\), expected \(2, 3\)"):
        FACTS.tensor('w', (2, 3))


# ---- formats


def test_block_sizes_are_those_of_the_gguf_package():
    from gguf.constants import GGML_QUANT_SIZES

    assert {int(t): tuple(s) for t, s in GGML_QUANT_SIZES.items()} == {
        int(t): block_of(t) for t in map(as_type, map(int, GGML_QUANT_SIZES))
    }
    assert {int(t): t.name for t in GGML_QUANT_SIZES} == {
        int(t): as_type(int(t)).name for t in GGML_QUANT_SIZES
    }


SPEC_TABLE = [
    ('F32', 0, 1, 4),
    ('F16', 1, 1, 2),
    ('BF16', 30, 1, 2),
    ('Q4_0', 2, 32, 18),
    ('Q4_1', 3, 32, 20),
    ('Q5_0', 6, 32, 22),
    ('Q5_1', 7, 32, 24),
    ('Q8_0', 8, 32, 34),
    ('IQ4_NL', 20, 32, 18),
    ('Q2_K', 10, 256, 84),
    ('Q3_K', 11, 256, 110),
    ('Q4_K', 12, 256, 144),
    ('Q5_K', 13, 256, 176),
    ('Q6_K', 14, 256, 210),
    ('IQ4_XS', 23, 256, 136),
    ('I32', 26, 1, 4),
    ('I64', 27, 1, 8),
    ('TQ1_0', 34, 256, 54),
    ('TQ2_0', 35, 256, 66),
    ('MXFP4', 39, 32, 17),
    ('NVFP4', 40, 64, 36),
    ('Q1_0', 41, 128, 18),
]


@pytest.mark.parametrize('name, id, elems, n_bytes', SPEC_TABLE)
def test_block_of(name, id, elems, n_bytes):
    assert (
        block_of(name) == block_of(name.lower()) == block_of(id) == (elems, n_bytes)
        and int(as_type(name)) == id
    )
    assert row_bytes(name, 4 * elems) == 4 * n_bytes


def test_a_format_only_a_newer_package_knows(monkeypatch):
    import gguf.constants

    class Newer(int):
        name = 'Q7_X'

    monkeypatch.setitem(gguf.constants.GGML_QUANT_SIZES, Newer(77), (16, 15))
    f = GGUFFile(build([], [info(b'x', [32], 77)], bytes(32)))
    assert f.tensor('x').n_bytes == 30 and f.tensor('x').type.name == 'Q7_X'
    GGMLType._value2member_map_.pop(77)


@pytest.mark.parametrize('t', ['q9_9', 99, -1, ''])
def test_unknown_format_by_name(t):
    with pytest.raises(GGUFError, match='unknown ggml type'):
        block_of(t)


# ---- writing


@pytest.mark.parametrize('name', SHIPPED)
def test_write_of_read_gives_the_same_file(tmp_path, name):
    f = GGUFFile(data('models', name))
    write_gguf(tmp_path / 'copy.gguf', f.kv, f.tensors, f.kv_types)
    g = GGUFFile(tmp_path / 'copy.gguf')
    assert list(g.kv) == list(f.kv) and g.kv_types == f.kv_types and list(g.tensors) == list(f.tensors)
    assert (tmp_path / 'copy.gguf').read_bytes() == f.path.read_bytes()


def test_the_gguf_package_reads_what_we_write(tmp_path):
    kv = {
        'general.architecture': 'llama',
        'n': 7,
        'neg': -7,
        'big': 2**40,
        'x': 0.5,
        'yes': True,
        'words': ['a', 'é', b'\xff'],
        'ints': [1, -2],
        'floats': np.array([0.5, 1], np.float32),
        'none': [],
        'caf\udce9': 'b\udcff',
    }
    rng = np.random.default_rng(0)
    tensors = {
        'f32': rng.normal(size=(3, 5)).astype('f4'),
        'f16': rng.normal(size=(7,)).astype('f2'),
        'i64': np.arange(6).reshape(2, 3),
    }
    write_gguf(tmp_path / 'm.gguf', kv, tensors, {'none': (KVType.ARRAY, KVType.STRING)})
    f = GGUFFile(tmp_path / 'm.gguf')
    assert (
        f.kv['caf\udce9'] == 'b\udcff'
        and f.kv['words'] == [b'a', 'é'.encode(), b'\xff']
        and f.kv['none'] == []
    )
    for n, x in tensors.items():
        assert np.array_equal(f.tensor(n, x.shape).data, x.reshape(-1).view(np.uint8))
    write_gguf(
        tmp_path / 'm.gguf',
        {k: v for k, v in kv.items() if k.isascii()},
        tensors,
        {'none': (KVType.ARRAY, KVType.STRING)},
    )
    same_as_peer(tmp_path / 'm.gguf')


def test_what_the_gguf_package_writes_comes_back_the_same(tmp_path):
    from gguf import GGUFWriter

    w = GGUFWriter(tmp_path / 'peer.gguf', 'llama')
    w.add_uint8('a', 1)
    w.add_int64('b', -1)
    w.add_float64('c', 0.1)
    w.add_array('d', ['x', 'y'])
    w.add_array('e', [1, 2])
    w.add_bool('f', True)
    w.add_custom_alignment(64)
    w.add_tensor('t', np.arange(10, dtype=np.float32))
    w.add_tensor('u', np.arange(4, dtype=np.int32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    f = GGUFFile(tmp_path / 'peer.gguf')
    write_gguf(tmp_path / 'ours.gguf', f.kv, f.tensors, f.kv_types)
    assert (
        f.alignment == 64 and (tmp_path / 'ours.gguf').read_bytes() == (tmp_path / 'peer.gguf').read_bytes()
    )


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    from llamaref.files.gguf import TensorInfo

    p = tmp_path / 'm.gguf'
    write_gguf(p, {'a': 1}, {})
    before = p.read_bytes()

    def broken():
        raise RuntimeError('no more')

    lazy = TensorInfo('x', (2,), GGMLType.F32, 0, 8, broken)
    with pytest.raises(RuntimeError):
        write_gguf(p, {'a': 2}, {'y': np.zeros(3, 'f4'), 'x': lazy})
    short = TensorInfo('x', (2,), GGMLType.F32, 0, 8, lambda: np.zeros(7, np.uint8))
    with pytest.raises(GGUFError, match='7 bytes of data, expected 8'):
        write_gguf(p, {'a': 2}, {'x': short})
    assert [q.name for q in tmp_path.iterdir()] == ['m.gguf'] and p.read_bytes() == before


def test_tensors_made_when_needed(tmp_path):
    from llamaref.files.gguf import TensorInfo

    order = []

    def maker(i):
        return lambda: order.append(i) or np.full(2, i, 'f4')

    write_gguf(
        tmp_path / 'm.gguf',
        {},
        {f't{i}': TensorInfo('', (2,), GGMLType.F32, 0, 8, maker(i)) for i in range(3)},
    )
    f = GGUFFile(tmp_path / 'm.gguf')
    assert order == [0, 1, 2] and [t.data.view('<f4')[0] for t in f.tensors.values()] == [0, 1, 2]


@pytest.mark.parametrize(
    'kv, tensors, words',
    [
        ({'': 1}, {}, 'key is empty'),
        ({'general.alignment': 24}, {}, 'power of two'),
        ({'general.alignment': np.int32(32)}, {}, 'expected u32'),
        ({}, {'x' * 64: np.zeros(1, 'f4')}, 'too long'),
        ({'a': object()}, {}, 'no GGUF type'),
        ({}, {'x': np.zeros((1,) * 5, 'f4')}, 'at most 4'),
        ({}, {'x': np.zeros(0, 'f4')}, 'not positive'),
        ({}, {'x': np.zeros(3, 'c8')}, 'no format'),
    ],
)
def test_the_writer_refuses_what_the_reader_would(tmp_path, kv, tensors, words):
    with pytest.raises(GGUFError, match=words):
        write_gguf(tmp_path / 'm.gguf', kv, tensors)
    assert list(tmp_path.iterdir()) == []


# ---- split files


@pytest.fixture
def parts(tmp_path):
    "A model in three parts"
    f = GGUFFile(data('models', 'rnd-llama.gguf'))
    return f, split_gguf(f, tmp_path / 'm', max_tensors=12)


def test_split_and_read_back(parts, tmp_path):
    f, paths = parts
    assert [p.name for p in paths] == [f'm-0000{i}-of-00003.gguf' for i in (1, 2, 3)]
    g = GGUFFile(paths[0])
    assert list(g.tensors) == list(f.tensors) and all(
        np.array_equal(g.tensors[n].data, t.data) for n, t in f.tensors.items()
    )
    merge_gguf(paths[0], tmp_path / 'whole.gguf')
    assert (tmp_path / 'whole.gguf').read_bytes() == f.path.read_bytes()


def test_split_keys(parts):
    for i, p in enumerate(parts[1]):
        g = GGUFFile(p, alone=True)
        assert [g.kv[k] for k in ('split.no', 'split.count', 'split.tensors.count')] == [i, 3, 30]
        assert [g.kv_types[k] for k in ('split.no', 'split.count', 'split.tensors.count')] == [
            (KVType.UINT16,)
        ] * 2 + [(KVType.INT32,)]
        assert ('general.architecture' in g.kv) == (i == 0)


@pytest.mark.parametrize('i', [1, 2])
def test_split_must_begin_with_the_first(parts, i):
    with pytest.raises(
        GGUFError, match=f'illegal split file idx: {i}.*model must be loaded with the first split'
    ):
        GGUFFile(parts[1][i])


def test_split_part_missing(parts):
    parts[1][2].unlink()
    with pytest.raises(GGUFError, match='m-00003-of-00003.gguf: cannot be opened'):
        GGUFFile(parts[1][0])


def test_split_parts_exchanged(parts):
    _, (a, b, c) = parts
    raw = b.read_bytes()
    b.write_bytes(c.read_bytes())
    c.write_bytes(raw)
    with pytest.raises(GGUFError, match='invalid split file idx: 2, expected 1'):
        GGUFFile(a)


def test_split_name_must_end_in_the_postfix(parts):
    p = parts[1][0].rename(parts[1][0].with_name('model.gguf'))
    with pytest.raises(GGUFError, match='invalid split file name'):
        GGUFFile(p)


def test_split_tensor_in_two_parts(parts):
    f, (a, b, c) = parts
    g = GGUFFile(b, alone=True)
    write_gguf(b, g.kv, g.tensors | {'output_norm.weight': f.tensors['output_norm.weight']}, g.kv_types)
    with pytest.raises(GGUFError, match='duplicate tensor name'):
        GGUFFile(a)


def test_split_count_of_tensors_disagrees(parts):
    f, (a, b, c) = parts
    g = GGUFFile(c, alone=True)
    write_gguf(c, g.kv, dict(list(g.tensors.items())[:-1]), g.kv_types)
    with pytest.raises(GGUFError, match='29 tensors in 3 parts, expected 30'):
        GGUFFile(a)


def test_split_count_of_one_is_a_single_file():
    f = GGUFFile(
        build([kv(b'split.count', 2, struct.pack('<H', 1)), kv(b'split.no', 2, struct.pack('<H', 0))])
    )
    assert len(f.parts) == 1
