"""Files made to hurt: every one is a GGUFError or a working file, in under a second and 200 MB.

Each case is measured: processor time by the clock of this process, memory by tracemalloc
(which sees numpy's too).
"""

import random
import struct
import time
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest
from conftest import data, shared

from llamaref.errors import GGUFError
from llamaref.files.gguf import GGUFFile
from llamaref.files.quants import as_array

SECOND, MEGABYTES = 1, 200


def good(name):
    "The bytes of a sound model"
    return (shared('models', name) if name == 'stories260K.gguf' else data('models', name)).read_bytes()


def survive(raw):
    "True: a working file; False: refused. Anything else is a failure"
    t = time.process_time()
    try:
        f = GGUFFile(raw)
        for w in f.tensors.values():
            assert w.data.size == w.n_bytes and w.data.base is not None
            assert w.n_bytes <= len(raw) and w.offset + w.n_bytes <= len(raw)
        repr(f), repr(f.kv_table())
        return True
    except GGUFError as e:
        str(e).encode('ascii')
        assert len(str(e)) < 500
        return False
    finally:
        assert time.process_time() - t < SECOND


@contextmanager
def little_memory():
    "No more than the limit may be allocated at any moment inside"
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MEGABYTES * 2**20
    finally:
        tracemalloc.stop()


NAMES = ['rnd-qwen3.gguf', 'stories260K.gguf']


@pytest.mark.parametrize('name', NAMES)
def test_cut_at_every_byte_of_the_header(name):
    raw = good(name)
    head = raw[: GGUFFile(raw).data_offset]
    for n in range(len(head)):
        try:
            GGUFFile(head[:n])
        except GGUFError as e:
            assert 'truncated file' in str(e)
        else:
            pytest.fail(f'accepted {n} of {len(raw)} bytes')


@pytest.mark.parametrize('name', NAMES)
def test_cut_at_200_places_of_the_data(name, tmp_path):
    raw, rng = good(name), random.Random(1)
    p, start = tmp_path / 'm.gguf', GGUFFile(raw).data_offset
    for n in sorted([len(raw) - 1] + [rng.randrange(start, len(raw)) for _ in range(199)], reverse=True):
        p.write_bytes(raw[:n])
        with pytest.raises(GGUFError, match='m.gguf: byte .* truncated file'):
            GGUFFile(p)


def extremes(n):
    "Numbers of n bytes that break things"
    bits = 8 * n
    return sorted(
        {
            v % 2**bits
            for v in (0, 1, 5, 9, 13, 24, 33, 255, 2**31, 2**32 - 1, 2**32, 2**61, 2**62, 2**63, -1, -32)
        }
    )


@pytest.mark.parametrize('name', ['rnd-llama-mixed.gguf', 'stories260K.gguf'])
def test_each_field_set_to_extremes(name):
    raw, trace = good(name), []
    GGUFFile(raw, trace)
    cases = [(a, b, v) for a, b, _ in trace if b - a in (1, 2, 4, 8) for v in extremes(b - a)]
    assert len(cases) > 2000
    cases = random.Random(6).sample(cases, 2000)

    def with_value(a, b, v):
        return raw[:a] + v.to_bytes(b - a, 'little') + raw[b:]

    passed = sum(survive(with_value(*c)) for c in cases)
    assert 0 < passed < len(cases)  # many values of many keys are free
    with little_memory():
        for c in random.Random(5).sample(cases, 60):
            survive(with_value(*c))


def mutate(raw, rng, stop):
    "One of the ways in which a file goes wrong, somewhere before `stop`"
    a = rng.randrange(stop)
    n = rng.choice([1, 1, 2, 4, 8, 16, 100])
    how = rng.randrange(5)
    if how == 0:
        return raw[:a] + rng.randbytes(n) + raw[a + n :]
    if how == 1:
        return raw[:a] + raw[a + n :]
    if how == 2:
        return raw[:a] + rng.randbytes(n) + raw[a:]
    if how == 3:
        return raw[:a] + rng.choice([b'\xff', b'\0', b'\x7f', b'\x80']) * n + raw[a + n :]
    b = rng.randrange(stop)
    return raw[:a] + raw[b : b + n] + raw[a + n :]


def test_two_thousand_mutations():
    raws, rng = [good('rnd-qwen3.gguf'), good('rnd-llama-mixed.gguf')], random.Random(2)
    starts = [GGUFFile(r).data_offset for r in raws]
    refused = 0
    for i in range(2000):
        m = raws[i % 2]
        for _ in range(rng.choice([1, 1, 2, 5])):
            m = mutate(m, rng, starts[i % 2])
        refused += not survive(m)
    assert 1000 < refused < 2000  # both kinds occur


def test_mutations_use_little_memory():
    raw, rng = good('rnd-qwen3.gguf'), random.Random(3)
    start = GGUFFile(raw).data_offset
    with little_memory():
        for _ in range(120):
            survive(mutate(raw, rng, start))


def test_mutated_weights_still_dequantise():
    "Random bytes as weights are some floats, perhaps nan; never a crash"
    raw = bytearray(good('rnd-llama-mixed.gguf'))
    start = GGUFFile(bytes(raw)).data_offset
    raw[start:] = random.Random(4).randbytes(len(raw) - start)
    with np.errstate(all='ignore'):
        for t in GGUFFile(bytes(raw)).tensors.values():
            assert as_array(t).shape == t.shape


def key(name, type, value):
    return struct.pack('<Q', len(name)) + name + struct.pack('<I', type) + value


@pytest.mark.parametrize(
    'n_kv, n_tensors', [(2**64 - 1, 0), (0, 2**64 - 1), (2**40, 2**40), (1, 0), (2**63, 2**63)]
)
def test_counts_over_a_megabyte_of_zeros(n_kv, n_tensors):
    with little_memory():
        assert not survive(b'GGUF' + struct.pack('<IQQ', 3, n_tensors, n_kv) + bytes(2**20))


@pytest.mark.parametrize('elem, size', [(0, 1), (7, 1), (4, 4), (12, 8), (8, 8)])
def test_an_array_that_says_it_is_larger_than_the_file(elem, size):
    for n in (2**17 + 1, 2**32, 2**61, 2**64 - 1):
        value = struct.pack('<IQ', elem, n) + bytes(2**17 * size - 100)
        with little_memory():
            assert not survive(b'GGUF' + struct.pack('<IQQ', 3, 0, 1) + key(b'a', 9, value))


def test_a_million_empty_strings():
    "As many as the file has room for: legal, and still cheap"
    value = struct.pack('<IQ', 8, 10**6) + bytes(8 * 10**6)
    t = time.process_time()
    f = GGUFFile(b'GGUF' + struct.pack('<IQQ', 3, 0, 1) + key(b'a', 9, value))
    assert len(f.kv['a']) == 10**6 and time.process_time() - t < SECOND


def test_thousands_of_keys_and_tensors():
    keys = b''.join(key(b'k%d' % i, 4, bytes(4)) for i in range(20_000))
    infos = b''.join(
        struct.pack('<Q', 6) + b'%06d' % i + struct.pack('<IQIQ', 1, 8, 0, 32 * i) for i in range(5_000)
    )
    raw = b'GGUF' + struct.pack('<IQQ', 3, 5_000, 20_000) + keys + infos
    raw = raw + bytes(-len(raw) % 32) + bytes(32 * 5_000)
    t = time.process_time()
    f = GGUFFile(raw)
    assert (len(f.kv), len(f.tensors)) == (20_000, 5_000) and time.process_time() - t < SECOND


def test_a_sparse_giant_is_opened_without_being_read(tmp_path):
    "A tensor of 64 GiB that takes no room on the disk"
    p, n = tmp_path / 'giant.gguf', 2**36
    head = (
        b'GGUF'
        + struct.pack('<IQQ', 3, 1, 0)
        + struct.pack('<Q', 1)
        + b'x'
        + struct.pack('<IQIQ', 1, n, 24, 0)
    )
    p.write_bytes(head + bytes(-len(head) % 32))
    try:
        with p.open('r+b') as f:
            f.truncate(p.stat().st_size + n)
    except OSError:
        pytest.skip('no sparse files of this size here')
    t = time.process_time()
    with little_memory():
        f = GGUFFile(p)
        assert f.tensor('x').data[-1] == 0
    assert time.process_time() - t < SECOND


def test_split_count_from_a_stranger(tmp_path):
    "65,535 parts announced, none there: one error, not 65,535 attempts"
    p = tmp_path / 'm-00001-of-65535.gguf'
    p.write_bytes(
        b'GGUF'
        + struct.pack('<IQQ', 3, 0, 2)
        + key(b'split.no', 2, bytes(2))
        + key(b'split.count', 2, b'\xff\xff')
        + bytes(32)
    )
    with pytest.raises(GGUFError, match='m-00002-of-65535.gguf: cannot be opened'):
        GGUFFile(p)
