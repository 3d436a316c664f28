"Plans as programs: the bits of eager operations and of launches, and what may come in the way; spec 70.3"
import hashlib, os, subprocess, sys, threading

import numpy as np
import pytest

import llamaref as lr
from conftest import ROOT, data
from llamaref.errors import DeviceError

pytest.importorskip('pyopencl')
from llamaref.compute import persistent
from llamaref.compute.persistent import Program, cuts, waits

MODELS = sorted(p.name for p in data('models').glob('*.gguf'))
KINDS = lambda plan: {(s.launch.file, s.launch.defs, s.launch.kernel) for s in plan.steps}

@pytest.fixture(scope='module')
def device():
    try: dev = lr.Device.get('opencl')
    except DeviceError as e: pytest.skip(str(e))
    if not dev.on_host: pytest.skip('persistent programs are for CPUs')
    return dev

@pytest.fixture(autouse=True)
def as_programs(request):
    "Every test begins with programs on, whatever the one before did"
    if 'device' not in request.fixturenames: yield; return
    dev = request.getfixturevalue('device')
    dev.persistent = True
    yield
    dev.persistent = True

@pytest.fixture(scope='module')
def models(device):
    "All models, and one interpreter that knows all their steps: it is built once"
    got = {m: lr.load(data('models', m), device) for m in MODELS}
    kinds = set()
    for m in got.values():
        ctx = lr.Context(m, n_ctx=64)
        device.persistent = False
        ctx.decode([5, 6, 7]); ctx.decode([8])
        for r in ctx.plans.values(): kinds |= KINDS(r.plan)
    device.persistent = True
    device.interpreter(kinds)
    return got

def flow(model, **kw):
    "A prompt, three single tokens, and a batch of two sequences"
    ctx = lr.Context(model, n_ctx=128, n_seq_max=2)
    out = [ctx.decode([5, 9, 3, 77, 4, 21, 8], logits='all', **kw).logits]
    out += [ctx.decode([int(i)], **kw).logits for i in (6, 2, 90)]
    b = lr.Batch()
    for i, (s, p) in enumerate([(0, 10), (1, 0), (1, 1), (0, 11)]): b.add(30 + i, p, [s], True)
    return ctx, np.concatenate([*out, ctx.decode(b, **kw).logits])

@pytest.mark.parametrize('name', MODELS)
def test_eager_launches_and_program_give_the_same_bits(models, device, name):
    _, eager = flow(models[name], tap=lambda *a: None)
    device.persistent = False
    _, launched = flow(models[name])
    device.persistent = True
    ctx, walked = flow(models[name])
    assert all(isinstance(r.plan.program, Program) for r in ctx.plans.values())
    np.testing.assert_array_equal(eager, launched)
    np.testing.assert_array_equal(eager, walked)

def shapes(rng, n):
    "Batches of random shape that continue four sequences of ten positions"
    for _ in range(n):
        b, seqs = lr.Batch(), rng.permutation(4)[:rng.integers(1, 5)]
        for s in seqs:
            for p in range(10, 10 + rng.integers(1, 4)):
                b.add(int(rng.integers(3, 200)), int(p), [int(s)], bool(rng.integers(2)))
        b.logits[-1] = True
        yield b

def four(model):
    ctx = lr.Context(model, n_ctx=256, n_seq_max=4)
    for s in range(4): ctx.decode([11 + s, 5, 40, 7, 60 + s, 33, 2, 3, 9, 80], seq_id=s)
    return ctx

def step(ctx, b):
    out = ctx.decode(b).logits
    for s in range(4): ctx.memory.seq_rm(s, 10, -1)
    return out

def test_ten_thousand_steps_beside_busy_processes(models, device):
    ctx, batches = four(models['rnd-llama.gguf']), list(shapes(np.random.default_rng(0), 12))
    device.persistent = False
    want = [step(ctx, b) for b in batches]
    device.persistent = True
    busy = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) for _ in range(os.cpu_count())]
    try:
        for i in np.random.default_rng(1).integers(len(batches), size=10_000):
            assert np.array_equal(step(ctx, batches[i]), want[i])
    finally:
        for p in busy: p.kill(); p.wait()
    assert device.persistent, 'a part was not done in time'

ALONE = '''
import hashlib, numpy as np, llamaref as lr
ctx = lr.Context(lr.load({path!r}, 'opencl', n_threads={n}), n_ctx=128, n_seq_max=2)
out = [ctx.decode([5, 9, 3, 77, 4, 21, 8], logits='all').logits,
       *(ctx.decode([i]).logits for i in (6, 2, 90))]
groups = {{r.plan.program.groups for r in ctx.plans.values()}}
print(hashlib.sha1(np.concatenate(out).tobytes()).hexdigest(), *groups, ctx.device.persistent)
'''

@pytest.mark.parametrize('env,n', [({'POCL_MAX_PTHREAD_COUNT': '1'}, 0), ({}, 1)])
def test_one_core_one_group_same_bits(models, env, n):
    code = ALONE.format(path=str(data('models', 'rnd-qwen3.gguf')), n=n)
    got = subprocess.run([sys.executable, '-c', code], env=os.environ | env, cwd=ROOT,
                         capture_output=True, text=True, timeout=120)
    want = flow(models['rnd-qwen3.gguf'])[1][:10]
    assert got.stdout.split() == [hashlib.sha1(want.tobytes()).hexdigest(), '1', 'True'], got.stderr

def test_more_groups_than_units_are_refused(models, device):
    ctx, _ = flow(models['rnd-llama.gguf'])
    plan = next(iter(ctx.plans.values())).plan
    for n in (device.units + 1, 10_000, 0):
        with pytest.raises(DeviceError, match=f'for {n} groups, but .* has {device.units} compute units'):
            Program(device, plan.steps, n)

@pytest.mark.parametrize('lost', [1, 2, 20])
def test_a_part_that_is_never_done(models, device, caplog, monkeypatch, lost):
    "The limit ends the kernel, launches do the step over, one warning"
    persistent.log.__dict__.pop('_said', None)
    monkeypatch.setattr(persistent.log, 'propagate', True)
    ctx = lr.Context(models['rnd-llama.gguf'], n_ctx=128)
    ctx.decode([5, 9, 3])
    want = [ctx.decode([i]).logits for i in (7, 8, 9)]
    ctx.memory.seq_rm(0, 3, -1)
    program = next(r.plan.program for (T, *_), r in ctx.plans.items() if T == 1)
    program.limit, program.lost = 1020, lost
    with caplog.at_level('WARNING'): got = [ctx.decode([i]).logits for i in (7, 8, 9)]
    np.testing.assert_array_equal(got, want)
    assert len([r for r in caplog.records if 'not done in time' in r.message]) == 1
    assert not device.persistent

def test_a_group_that_does_not_come_is_not_missed(models, device):
    "Parts are taken, not given: one group of a program made for two does it all"
    if device.units < 2: pytest.skip('one compute unit')
    ctx, want = flow(models['rnd-llama.gguf'])
    program = next(r.plan.program for (T, *_), r in ctx.plans.items() if T == 1)
    program.groups = 1
    ctx2, got = flow(models['rnd-llama.gguf'])
    np.testing.assert_array_equal(got, want)
    plan = next(r for (T, *_), r in ctx.plans.items() if T == 1)
    before = plan.out.numpy()
    assert program.run()
    np.testing.assert_array_equal(plan.out.numpy(), before)

@pytest.mark.parametrize('own_device', [False, True])
def test_two_contexts_in_two_threads(models, device, own_device):
    one = other = models['rnd-qwen3.gguf']
    if own_device: other = lr.load(data('models', 'rnd-qwen3.gguf'), lr.Device.get('opencl', n_threads=1))
    want, got = flow(one)[1], {}
    def work(k, m): got[k] = [flow(m)[1] for _ in range(6)]
    threads = [threading.Thread(target=work, args=(k, m)) for k, m in enumerate((one, other))]
    for t in threads: t.start()
    for t in threads: t.join(60)
    assert not any(t.is_alive() for t in threads)
    for k in (0, 1):
        for g in got[k]: np.testing.assert_array_equal(g, want)

INTERRUPTED = '''
import os, signal, sys, threading, time
import numpy as np, llamaref as lr
ctx = lr.Context(lr.load({path!r}, 'opencl'), n_ctx=256)
def run(n):
    ctx.memory.clear(); ctx.decode([5, 9, 3])
    return np.concatenate([ctx.decode([i]).logits for i in range(4, 4 + n)])
want, rng, hits = run(20), np.random.default_rng(0), 0
for _ in range(12):
    t = threading.Timer(float(rng.uniform(.001, .02)), os.kill, (os.getpid(), signal.SIGINT))
    try:
        t.start()
        while True: run(20)
    except KeyboardInterrupt: hits += 1
    t.join()
    np.testing.assert_array_equal(run(20), want)
print(hits, ctx.device.persistent)
'''

@pytest.mark.skipif(os.name != 'posix', reason='signals')
def test_interrupting_python_leaves_the_context_usable():
    code = INTERRUPTED.format(path=str(data('models', 'rnd-llama.gguf')))
    got = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert got.stdout.split() == ['12', 'True'], got.stderr

@pytest.mark.parametrize('T,short', [(1, True), (32, True), (512, False)])
def test_long_steps_stay_launches(device, T, short):
    x = device.zeros((T, 512))
    with device.record() as plan: y = device.scale(device.add(x, x), 2)
    plan.run()
    assert bool(plan.program) is short
    assert not y.numpy().any()

def test_a_kernel_without_a_step_means_launches(models, device, monkeypatch):
    def no(self, kinds): raise DeviceError('no such step')
    monkeypatch.setattr(type(device), 'interpreter', no)
    ctx, got = flow(models['rnd-llama.gguf'])
    assert not any(r.plan.program for r in ctx.plans.values())
    monkeypatch.undo()
    np.testing.assert_array_equal(got, flow(models['rnd-llama.gguf'])[1])

def test_waits_see_every_hazard(device):
    x, i = device.zeros((64, 8)), device.upload(np.arange(8, dtype=np.int32))
    a, b = x.rows(0, 8), x.rows(8, 16)
    with device.record() as plan:
        y = device.scale(a, 2)          # reads a
        z = device.scale(b, 2)          # another row: free
        device.copy(b, y)               # reads y (written), writes b (read): waits
        device.copy(a, z)               # z is from before the wait, a too: free
        u = device.add(a, b)            # reads both: waits
        device.copy(a, z)               # writes what is being read: waits
        device.copy(a, y)               # writes what is being written: waits
    assert waits(plan.steps) == [False, False, True, False, True, True, True]
    assert u.shape == (8, 8) and i.shape == (8,)

@pytest.mark.parametrize('groups', [1, 2, 3, 16])
@pytest.mark.parametrize('n', [0, 1, 7, 96, 1000])
def test_cuts_are_all_rows_once(groups, n):
    rows = [i for p, m in cuts(groups) for i in range(n * p // m, n * (p + 1) // m)]
    assert sorted(rows) == list(range(n)) and len(cuts(groups)) == 8 * groups
