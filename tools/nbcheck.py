"""Whole-book checks that need no kernel: tools/nb check, or python tools/nbcheck.py [CHECK...].

Each check yields lines of the form `where: what is wrong, and what would be right`.
"""
import ast, builtins, filecmp, json, os, pathlib, re, shutil, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
NBS, LIB = ROOT/'nbs', ROOT/'llamaref'
# A package imports only from the floors before it; floor 0 is the single modules.
FLOORS = ('files compute layers memory models context sampling speculative chat engine server '
          'programs').split()
FLOOR = {name: i for i, name in enumerate(FLOORS, 1)} | {'testing': 12, '__main__': 12, 'convert': 13}
FORBIDDEN = {'convert': {'engine', 'server'}}        # beyond the order of floors
SHARED = {'programs', 'testing', '__main__'}         # one floor
FRONT_DOOR = 'llamaref'                              # stands on all floors, loads each when asked
DEV_ONLY = set('fastcore nbdev matplotlib IPython execnb jupytext nbclient'.split())

def notebooks():
    "Every notebook of the book, in learning order"
    hidden = lambda p: any(x[0] in '._' for x in p.relative_to(NBS).parts)
    return sorted((p for p in NBS.rglob('*.ipynb') if not hidden(p)), key=lambda p: (p.parent != NBS, p))

def read(path): return json.loads(path.read_text(encoding='utf-8'))

def source(cell): return ''.join(cell['source'])

def directives(cell):
    return set(re.findall(r'^#\|\s*([\w-]+)', source(cell), re.M)) if cell['cell_type'] == 'code' else set()

def exported(cell): return bool({'export', 'exports', 'exporti'} & directives(cell))

def parsed(cell):
    try: return ast.parse(re.sub(r'^\s*[%!].*$', 'pass', source(cell), flags=re.M))
    except SyntaxError: return ast.parse('')

# ---- one notebook

def title(nb):
    "The site makes a title and a description of the first cell, and drops what else stands there"
    first = nb['cells'][0] if nb['cells'] else None
    lines = source(first).strip().splitlines() if first and first['cell_type'] == 'markdown' else []
    if not lines or not re.match(r'# \S', lines[0]):
        yield 'the first cell is not Markdown with a title, `# ...`'
    quotes = [l for l in lines[1:] if l.startswith('>')]
    if len(quotes) != 1: yield f'under the title stands one `> ` sentence, on one line; {len(quotes)} do'
    for l in lines[1:]:
        if l.strip() and not re.match(r'>|- \S+: ', l):
            yield f'the site drops this from the first cell: {l[:50]!r}'

def metadata(nb):
    spec = nb['metadata'].get('kernelspec', {}).get('name')
    if spec != 'python3': yield f'kernelspec is {spec!r}, must be python3'
    if more := set(nb['metadata']) - {'kernelspec'}: yield f'metadata {more}; run tools/nb export'
    if (nb.get('nbformat'), nb.get('nbformat_minor')) != (4, 5): yield 'not nbformat 4.5; run tools/nb export'

REMOTE = re.compile(r'(?:src|href)=\\?["\']https?://[^"\']+\.(?:js|css|png|jpe?g|svg|gif|woff2?)\b')

def cells(nb):
    seen = set()
    if any(c.get('execution_count') for c in nb['cells']): yield 'keeps execution counts; run tools/nb export'
    for i, c in enumerate(nb['cells']):
        if not c.get('id'): yield f'cell {i} has no id'
        elif c['id'] in seen: yield f'cell {i} has the id of an earlier cell, {c["id"]}'
        seen.add(c.get('id'))
        for o in c.get('outputs', []):
            if o['output_type'] == 'error': yield f'cell {i} saved an error: {o["ename"]}: {o["evalue"]}'
            if REMOTE.search(json.dumps(o)): yield f'cell {i} shows a remote file'
        if c['cell_type'] == 'markdown' and re.search(r'!\[[^]]*\]\(https?://', source(c)):
            yield f'cell {i} shows a remote image'
        if c['cell_type'] == 'markdown' and re.search(r'\]\((?!\w+:)[^)\s]*\.html', source(c)):
            yield f'cell {i}: link to the notebook, .ipynb, not to its page'

def docs_step(nb):
    "The site runs a notebook's imports, exports and signatures alone: they must hold without the rest"
    known = set(dir(builtins)) | {'get_ipython'}
    for i, c in enumerate(nb['cells']):
        if c['cell_type'] != 'code' or re.search(r'^#\|\s*eval:\s*false', source(c), re.M): continue
        nodes = list(ast.walk(parsed(c)))
        imports = any(isinstance(n, (ast.Import, ast.ImportFrom)) for n in nodes)
        if not imports and not exported(c): continue
        known |= set(bound(nodes))
        if exported(c): yield from (f'cell {i}: {w}' for w in quoted(nodes, known))
        elif lost := {n.id for n in nodes if isinstance(n, ast.Name)} - known:
            yield f'cell {i}: split imports from use of {", ".join(sorted(lost))} (the site runs it alone)'
    if nb['cells'] and 'exports' in directives(nb['cells'][-1]):
        yield 'the last cell may not be `#| exports` (nbdev looks at the one after it)'

def bound(nodes):
    "Names that these nodes bind"
    for n in nodes:
        if isinstance(n, (ast.Import, ast.ImportFrom)):
            yield from ((a.asname or a.name).split('.')[0] for a in n.names)
        if isinstance(n, (ast.FunctionDef, ast.ClassDef)): yield n.name
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store): yield n.id
        if isinstance(n, ast.arg): yield n.arg
        if isinstance(n, ast.ExceptHandler) and n.name: yield n.name

def quoted(nodes, known):
    "Annotations in quotes that name something not there yet: the signature on the site cannot be made"
    for f in nodes:
        if not isinstance(f, ast.FunctionDef): continue
        for ann in [a.annotation for a in f.args.posonlyargs + f.args.args + f.args.kwonlyargs] + [f.returns]:
            for n in ast.walk(ann or ast.Pass()):
                if not isinstance(n, ast.Constant) or not isinstance(n.value, str): continue
                try: names = {x.id for x in ast.walk(ast.parse(n.value)) if isinstance(x, ast.Name)}
                except SyntaxError: names = {n.value}
                for name in names - known: yield f'{f.name}: {name!r} in quotes is not defined up to here'

def module(path, nb):
    "nbs/07_sampling/03_budget.ipynb exports to llamaref.sampling.budget"
    code = '\n'.join(source(c) for c in nb['cells'] if c['cell_type'] == 'code')
    got = re.search(r'^#\|\s*default_exp\s+(\S+)', code, re.M)
    if any(map(exported, nb['cells'])) and not got: yield 'exports, but has no default_exp'
    if not got or path.parent == NBS: return
    room, name = (re.sub(r'^\d+[a-z]*_', '', x) for x in (path.parent.name, path.stem))
    want = name if room == 'basics' else f'{room}.{name}'
    if got[1] not in (want, '__init__', '__main__'):
        yield f'exports {got[1]}; a notebook there exports {want}'

def page_of(path):
    "The file of a notebook's page, as nbdev names it"
    return path.with_name(re.sub(r'^\d+[a-zA-Z0-9]*_', '', path.name.lower())).with_suffix('.html')

def check_notebooks():
    pages = {}
    for path in notebooks():
        nb, where = read(path), path.relative_to(ROOT)
        for check in (title, metadata, cells, docs_step): yield from (f'{where}: {w}' for w in check(nb))
        yield from (f'{where}: {w}' for w in module(path, nb))
        if page_of(path) in pages: yield f'{where}: has the page of {pages[page_of(path)]}'
        pages[page_of(path)] = where

# ---- the sidebar

def entries(x):
    "Every notebook named in the sidebar, in order"
    if isinstance(x, str): return [x] if x.endswith('.ipynb') else []
    if isinstance(x, list): return [e for y in x for e in entries(y)]
    return [e for k in ('href', 'contents') for e in entries(x.get(k, []))]

def check_sidebar():
    import yaml
    got = entries(yaml.safe_load((NBS/'sidebar.yml').read_text())['website']['sidebar']['contents'])
    want = [p.relative_to(NBS).as_posix() for p in notebooks()]
    for x in want:
        if x not in got: yield f'nbs/sidebar.yml: {x} is missing'
    for x in got:
        if x not in want: yield f'nbs/sidebar.yml: {x} does not exist'
    for x in set(got):
        if got.count(x) > 1: yield f'nbs/sidebar.yml: {x} stands there twice'
    if sorted(got) == sorted(want) and got != want: yield 'nbs/sidebar.yml: not in the order of file names'

# ---- imports

def room_of(name): return (name.split('.') + [''])[1]

def floor_of(name): return FLOOR.get(room_of(name), 0)

def name_of(path): return '.'.join(path.relative_to(ROOT).with_suffix('').parts)

def modules(): return sorted(p for p in LIB.rglob('*.py') if p.name not in ('__init__.py', '_modidx.py'))

def imports(path):
    "Every (line, module, names) a file imports, inside functions too; relative imports resolved"
    here = path.relative_to(ROOT).with_suffix('').parts
    for n in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(n, ast.Import): yield from ((n.lineno, a.name, []) for a in n.names)
        if isinstance(n, ast.ImportFrom):
            base = '.'.join(here[:-n.level]) if n.level else ''
            yield n.lineno, '.'.join(x for x in (base, n.module) if x), [a.name for a in n.names]

def own_imports(path, known):
    "The modules of the project that a file imports"
    for line, mod, names in imports(path):
        if mod.split('.')[0] != 'llamaref': continue
        subs = [f'{mod}.{n}' for n in names if f'{mod}.{n}' in known]
        yield from ((line, m) for m in subs or [mod])

def wrong_floor(a, b):
    "May module `a` not import module `b`?"
    if b == FRONT_DOOR: return floor_of(a) < len(FLOORS)
    if room_of(b) in FORBIDDEN.get(room_of(a), ()): return True
    beside = floor_of(a) == floor_of(b) > 0 and room_of(a) != room_of(b)
    return floor_of(b) > floor_of(a) or beside and not {room_of(a), room_of(b)} <= SHARED

def check_imports():
    known = {name_of(p): p for p in modules()}
    graph = {}
    for mod, path in known.items():
        where = path.relative_to(ROOT)
        for line, m, _ in imports(path):
            if m.split('.')[0] in DEV_ONLY: yield f'{where}:{line}: imports {m}, which a user does not have'
        graph[mod] = set()
        for line, m in own_imports(path, known):
            graph[mod].add(m)
            if wrong_floor(mod, m):
                yield f'{where}:{line}: floor {floor_of(mod)} may not know {m}, floor {floor_of(m)}'
    yield from circles(graph)

def circles(graph):
    "Each circle of imports, found depth first"
    state, path = {}, []
    def visit(m):
        state[m] = 1; path.append(m)
        for n in sorted(graph[m]):
            if state.get(n) == 1: yield 'imports in a circle: ' + ' -> '.join(path[path.index(n):] + [n])
            elif n not in state and n in graph: yield from visit(n)
        path.pop(); state[m] = 2
    for m in sorted(graph):
        if m not in state: yield from visit(m)

def check_modules():
    "Every module is exported by some notebook: nbdev_export never deletes"
    found = (re.search(r'#\|\s*default_exp\s+([\w.]+)', p.read_text(encoding='utf-8')) for p in notebooks())
    made = {m[1] for m in found if m}
    for p in modules():
        if name_of(p).removeprefix('llamaref.') not in made:
            yield f'{p.relative_to(ROOT)}: no notebook exports it'

# ---- what the tools would write

def differing(a, b):
    "Notebooks and modules that differ between two trees, or are in one only"
    keep = lambda p: p.suffix in ('.py', '.ipynb') and '.ipynb_checkpoints' not in p.parts
    files = lambda r: {p.relative_to(r) for p in r.rglob('*') if p.is_file() and keep(p)}
    for f in sorted(files(a) | files(b)):
        if not (a/f).exists() or not (b/f).exists() or not filecmp.cmp(a/f, b/f, shallow=False): yield f

def check_sync():
    "Export and clean in a copy of the project; nothing may change"
    env = {k: v for k, v in os.environ.items() if k != 'IN_TEST'}
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)/ROOT.name
        for d in ('nbs', 'llamaref'):
            shutil.copytree(ROOT/d, tmp/d, ignore=shutil.ignore_patterns('.*', '__pycache__'))
        shutil.copy(ROOT/'settings.ini', tmp)
        for tool, folder in (('nbdev_export', 'llamaref'), ('nbdev_clean', 'nbs')):
            p = subprocess.run([pathlib.Path(sys.executable).parent/tool], cwd=tmp, env=env,
                               capture_output=True, text=True)
            if p.returncode: yield f'{tool}: {p.stderr.strip()[-600:]}'
            for f in differing(tmp/folder, ROOT/folder):
                yield f'{folder}/{f}: {tool} would change it; run tools/nb export'

# ---- lint

def in_header(path, line):
    "Is a line of a module above its first cell? That part the export writes: docstring and `__all__`"
    rows = path.read_text(encoding='utf-8').splitlines()
    return line <= next((i for i, r in enumerate(rows) if r.startswith('# %% ') and 'auto #0' not in r), 0)

def check_lint():
    targets = 'llamaref tests tools setup.py tools/nb tools/quarto'.split()
    ruff = [sys.executable, '-m', 'ruff', 'check', '--output-format', 'concise', '--quiet']
    p = subprocess.run(ruff + targets, cwd=ROOT, capture_output=True, text=True)
    for l in (p.stdout + p.stderr).strip().splitlines():
        m = re.match(r'(llamaref/\S+?):(\d+):\d+: E501', l)
        if not (m and in_header(ROOT/m[1], int(m[2]))): yield l

HOSTS = re.compile(r'(?<![\w.])/(?:work|root|farm)/\w|\bhttps?://(?:[\w.]*\.)?(?:pythonhosted|pypi)\.org')

def check_words():
    "Paths of one machine and hosts of one registry do not belong in the project"
    p = subprocess.run(['git', 'ls-files', '-z'], cwd=ROOT, capture_output=True, text=True)
    for f in filter(None, p.stdout.split('\0')):
        if f == 'tools/nbcheck.py' or f.startswith('tests/data') or not (ROOT/f).is_file(): continue
        try: text = (ROOT/f).read_text(encoding='utf-8')
        except UnicodeDecodeError: continue
        for m in HOSTS.finditer(text): yield f'{f}:{text.count(chr(10), 0, m.start()) + 1}: {m[0]}'

CHECKS = {f.__name__.removeprefix('check_'): f for f in (
    check_notebooks, check_sidebar, check_imports, check_modules, check_sync, check_lint, check_words)}

def main(only=()):
    bad = 0
    for name in only or CHECKS:
        found = list(CHECKS[name]()); bad += len(found)
        print(f'{name}: ' + ('ok' if not found else f'{len(found)} to mend'), flush=True)
        for line in found: print(f'    {line}', flush=True)
    return int(bad > 0)

if __name__ == '__main__': sys.exit(main(sys.argv[1:]))
