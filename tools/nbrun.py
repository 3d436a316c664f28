"""Run notebooks afresh and compare what they print with what they saved: tools/nb test.

Nothing is written. An output is compared as text, its streams and its value; pictures only by being there.
What may differ from run to run is blanked first: times and rates with their unit, addresses, temporary paths,
dates, names of devices. Numbers with a decimal point may differ in the fourth digit, since processors round
differently, and below 1e-5 all is rounding. Whole numbers and words must be equal.

A cell whose output is a measurement that this does not catch (a bare number of seconds, a table of rates, a
choice made by the clock) says so with `#| measured`: of it only the kinds of output are compared.
"""
import concurrent.futures, os, pathlib, re, sys, time

from nbcheck import ROOT, notebooks, read, source

ANSI = re.compile(r'\x1b\[[0-9;]*[A-Za-z]')
NUMBER = r'(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?'
UNIT = r'''(?:(?:tok(?:en)?s?|t|it|words?|rows?|ops|calls|chars|bytes|[kKMGT]i?B|[GMT]?FLOPs?)
             (?:/s|\ (?:per|a)\ second)|GFLOPS|ns|[µu]s|ms|s|sec|seconds?|min(?:utes)?
             |[x×]|times\ (?:faster|slower))(?![\w/])'''
BLANK = [(re.compile(what, re.X), by) for what, by in (
    (NUMBER + r'(?:\s*±\s*[\d.]+)?\s*' + UNIT, '<measured>'),
    (r'\b0x[0-9a-fA-F]{5,}\b', '<address>'),
    (r'(?:/[\w.+-]+)*/(?:tmp|T)/[\w./+-]+', '<temp>'),
    (re.escape(str(ROOT)), '<root>'),
    (r'\b20\d\d-\d\d-\d\d(?:[T\ ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?', '<date>'),
    (r'(?:cpu-(?:[\w-]+-)?)?\b(?:Intel|AMD|NVIDIA|Apple|ARM)(?:\((?:R|TM)\)|[^\n|,;\'")])*', '<device>'),
    (r'\b\d+\ (?:compute\ )?units|\bPortable\ Computing\ Language', '<device>'),
    (r'\b(?:pocl|PoCL|pthread)-[\w.-]+', '<device>'))]
TOKEN = re.compile(r'[-+]?\d+\.\d*(?:e[-+]?\d+)?|[-+]?\d+e[-+]?\d+|[-+]?\d+|[^\W\d]+|\S')

def tokens(text):
    "The words, numbers and signs of a text, what may differ from run to run blanked"
    text = ANSI.sub('', text)
    for what, by in BLANK: text = what.sub(by, text)
    return TOKEN.findall(text)

def same_token(a, b):
    if a == b: return True
    try: x, y = float(a), float(b)
    except ValueError: return False
    return bool(set('.e') & set(a + b)) and abs(x - y) <= 2e-3*max(abs(x), abs(y)) + 1e-5

def same_text(a, b):
    x, y = tokens(a), tokens(b)
    return len(x) == len(y) and all(map(same_token, x, y))

def join(x): return ''.join(x) if isinstance(x, list) else x

def html_text(s):
    s = re.sub(r'<(svg|style|script)\b.*?</\1>', ' ', s, flags=re.S)
    return re.sub(r'\s+', ' ', re.sub(r'<[^>]+>', ' ', s))

def printed(cell):
    "What a cell showed, as text: standard output, then each value"
    outs = cell.get('outputs', [])
    text = [''.join(join(o['text']) for o in outs if o['output_type'] == 'stream' and o['name'] == 'stdout')]
    for d in (o.get('data', {}) for o in outs):
        plain, markup = join(d.get('text/plain', '')), join(d.get('text/html', d.get('text/markdown', '')))
        hollow = re.fullmatch(r'<.*>', plain.strip())     # a text twin that says nothing
        text.append(plain if plain and not hollow else html_text(markup) or plain)
    return '\n'.join(text)

def kinds(cell):
    kind = lambda o: 'text' if o['output_type'] == 'stream' else '+'.join(sorted(o.get('data', {})))
    return sorted({kind(o) for o in cell.get('outputs', []) if o.get('name') != 'stderr'})

def first_difference(a, b):
    "The first line that differs, of both, from shortly before the place"
    x, y = ([l for l in ANSI.sub('', s).splitlines() if l.strip()] + ['(nothing more)'] for s in (a, b))
    l, r = next(((l, r) for l, r in zip(x, y) if not same_text(l, r)), (a, b))
    at = max(0, len(os.path.commonprefix([l, r])) - 60)
    return l[at:at + 160], r[at:at + 160]

def compare(old, new):
    "Where a saved cell and its fresh run part: (saved, fresh) or None"
    if kinds(old) != kinds(new): return ', '.join(kinds(old)) or 'nothing', ', '.join(kinds(new)) or 'nothing'
    if re.search(r'^#\|\s*measured', source(old), re.M): return None
    return None if same_text(printed(old), printed(new)) else first_difference(printed(old), printed(new))

def run(path):
    "Execute a copy of a notebook: (seconds, error or None, [(cell, saved, fresh)])"
    import nbformat
    from nbclient import NotebookClient
    old, doc, t = read(path)['cells'], nbformat.read(path, as_version=4), time.time()
    for c in doc.cells:
        if re.search(r'^#\|\s*eval:\s*false', c.source, re.M): c.cell_type = 'raw'
    client = NotebookClient(doc, timeout=600, kernel_name='python3', coalesce_streams=True,
                            extra_arguments=['--log-level=40'],
                            resources={'metadata': {'path': str(path.parent)}})
    try: client.execute()
    except Exception as e: return time.time() - t, ANSI.sub('', str(e)) or repr(e), []
    pairs = [(i, compare(a, b)) for i, (a, b) in enumerate(zip(old, doc.cells)) if b.cell_type == 'code']
    return time.time() - t, None, [(i, *d) for i, d in pairs if d]

def main(paths=()):
    paths = [pathlib.Path(p).resolve() for p in paths] or notebooks()
    bin = str(pathlib.Path(sys.executable).parent)
    os.environ['PATH'] = os.pathsep.join([bin, os.environ.get('PATH', '')])
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(min(len(paths), os.cpu_count() or 1)) as pool:
        for path, (secs, error, diff) in zip(paths, pool.map(run, paths)):
            bad += bool(error or diff)
            what = ', FAILED' if error else f', {len(diff)} outputs differ' if diff else ''
            print(f'{path.relative_to(ROOT)}: {secs:.1f} s{what}', flush=True)
            for l in (error or '').strip().splitlines()[-25:]: print(f'    {l}', flush=True)
            for i, a, b in diff: print(f'    cell {i}: saved {a!r}\n        fresh {b!r}')
    print(f'{len(paths) - bad} of {len(paths)} notebooks run and print what they saved', flush=True)
    return int(bad > 0)

if __name__ == '__main__': sys.exit(main(sys.argv[1:]))
