"""Everything CI runs, step by step, each with its time: python tools/ci.py [STEP...]

A step that fails does not keep the next from running; the exit status is 0 only if all passed.
"""
import os, pathlib, shutil, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PY = sys.executable
BIN = pathlib.Path(PY).parent

def sh(*args, cwd=ROOT, env=None, quiet=False):
    "Run a command; True if it succeeded. With `quiet` the end of its output is shown, and only if it did not"
    sys.stdout.flush()
    pipe = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT, 'text': True} if quiet else {}
    p = subprocess.run([str(a) for a in args], cwd=cwd, env={**os.environ, **(env or {})},
                       stdin=subprocess.DEVNULL, **pipe)
    if quiet and p.returncode: print(p.stdout[-1500:])
    return p.returncode == 0

def check(): return sh(PY, 'tools/nbcheck.py')

def notebooks(): return sh(PY, 'tools/nbrun.py')

def tests():
    workers = str(min(4, os.cpu_count() or 1))
    return sh(PY, '-m', 'pytest', 'tests', '-q', '-rfEs', '--durations=8', '-p', 'no:cacheprovider',
              '-n', workers, '--dist', 'loadfile')

def stumbles():
    "Why nbdev could not prepare a notebook for the site, which it does not say itself"
    os.environ['IN_TEST'] = '1'
    sys.path.insert(0, str(ROOT/'tools'))
    from execnb.nbio import read_nb
    from nbcheck import notebooks as all_notebooks
    from nbdev.processors import FilterDefaults
    for p in all_notebooks():
        try: FilterDefaults()(read_nb(p))
        except Exception as e:
            cause = e.__cause__ or e
            print(f'{p.relative_to(ROOT)}: {" ".join(str(e).split())[:160]}')
            print(f'    {type(cause).__name__}: {cause}')

def docs():
    "The site into _docs, checked; README.md is what index.ipynb says"
    if sys.version_info < (3, 11): print('skipped: smalldocs needs Python 3.11'); return True
    readme = (ROOT/'README.md').read_text(encoding='utf-8') if (ROOT/'README.md').exists() else ''
    shutil.rmtree(ROOT/'_proc', ignore_errors=True)
    path = {'PATH': os.pathsep.join([str(ROOT/'tools'), str(BIN), os.environ.get('PATH', '')])}
    if not sh(BIN/'nbdev_docs', env=path, quiet=True):
        sh(PY, '-W', 'ignore', 'tools/ci.py', 'stumbles')
        return False
    ok = sh(PY, 'tools/sitecheck.py', '_docs')
    proc = ROOT/'_proc'
    sh('quarto', 'render', proc/'index.ipynb', '-o', 'README.md', '-t', 'gfm', cwd=proc, env=path)
    fresh = (proc/'_docs'/'README.md').read_text(encoding='utf-8')
    if fresh != readme:
        (ROOT/'README.md').write_text(fresh, encoding='utf-8')
        print('README.md was not what nbs/index.ipynb says; it has been written anew: commit it')
        return ok and sys.argv[1:] == ['docs']      # fine for who asked for the site, not for CI
    print('README.md is what nbs/index.ipynb says')
    return ok

def wheel():
    "Source archive and wheel of what git knows; the wheel works in an empty environment, outside the project"
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        ls = ['git', 'ls-files', '-co', '--exclude-standard', '-z']
        known = subprocess.run(ls, cwd=ROOT, capture_output=True, text=True).stdout
        for f in filter(None, known.split('\0')):
            if (ROOT/f).is_file() and not f.startswith(('tests/', 'nbs/')):
                (tmp/'src'/f).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT/f, tmp/'src'/f)
        if not sh(PY, '-m', 'build', '--outdir', tmp/'dist', tmp/'src', quiet=True): return False
        whl, = (tmp/'dist').glob('*.whl')
        bin = tmp/'env'/'bin'
        pip = ('-m', 'pip', '--disable-pip-version-check', 'install', '-qq')
        if not (sh(PY, '-m', 'venv', tmp/'env') and sh(bin/'python', *pip, whl)): return False
        print(whl.name, f'{whl.stat().st_size/1e3:.0f} kB')
        model = ROOT/'tests'/'data'/'models'/'tiny-qwen3.gguf'
        runs = [('python', '-c', 'import llamaref; print(llamaref.__version__, llamaref.__file__)'),
                ('llamaref-tokenize', '-m', model, '-p', 'Hello', '--ids'),
                ('llamaref-completion', '-m', model, '-p', 'Hello', '-n', '8', '--temp', '0')]
        return all([sh(bin/name, *args, cwd=tmp) for name, *args in runs])

STEPS = {f.__name__: f for f in (check, notebooks, docs, wheel, tests)}

def main(names):
    if names == ['stumbles']: return stumbles()
    done, start = [], time.time()
    for name in names or STEPS:
        print(f'=== {name}', flush=True)
        t = time.time()
        try: ok = STEPS[name]()
        except Exception as e: ok = False; print(f'{type(e).__name__}: {e}')
        done.append((name, ok, time.time() - t))
        print(f'=== {name}: {"ok" if ok else "FAILED"} in {done[-1][2]:.0f} s', flush=True)
    if len(done) > 1:
        done.append(('all', all(d[1] for d in done), time.time() - start))
        for name, ok, secs in done: print(f'    {name:10} {"ok" if ok else "FAILED":7} {secs:5.0f} s')
    return int(not all(d[1] for d in done))

if __name__ == '__main__': sys.exit(main(sys.argv[1:]))
