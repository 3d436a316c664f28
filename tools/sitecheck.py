"""Check a built site: python tools/sitecheck.py _docs

Internal links and anchors resolve, nothing is loaded from elsewhere, formulas are set, every notebook has its
page, the search index is there and knows the pages.
"""
import html.parser, json, pathlib, re, sys
from urllib.parse import unquote, urlsplit

from nbcheck import NBS, ROOT, notebooks, page_of

LOADS = {('object', 'data')} | {(tag, 'src') for tag in 'script img iframe source video audio embed'.split()}

class Page(html.parser.HTMLParser):
    "What a page links to, what it loads, which anchors it has, and a few of its words"
    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.ids, self.title, self.text, self.stack = [], [], set(), '', [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        d = dict(attrs)
        if d.get('id'): self.ids.add(d['id'])
        if tag == 'a' and d.get('name'): self.ids.add(d['name'])
        if tag == 'a' and d.get('href'): self.links.append(d['href'])
        if tag == 'link' and d.get('rel') in ('stylesheet', 'icon', 'preload'): self.loads.append(d['href'])
        self.loads += [v for k, v in attrs if (tag, k) in LOADS and v]
        if tag not in ('br', 'hr', 'img', 'input', 'link', 'meta', 'mspace'): self.stack.append(tag)

    def handle_endtag(self, tag):
        while tag in self.stack and self.stack.pop() != tag: pass

    def handle_data(self, data):
        if not set(self.stack) & {'script', 'style', 'pre', 'code'}: self.text.append(data)

def check(site):
    site = pathlib.Path(site).resolve()
    pages = {p: Page(p.read_text(encoding='utf-8')) for p in sorted(site.rglob('*.html'))}
    if not pages: yield f'{site}: no pages'; return
    for path, page in pages.items():
        where = path.relative_to(site)
        for href in page.links + page.loads:
            yield from (f'{where}: {w}' for w in check_link(href, path, pages, site))
        for src in page.loads:
            if urlsplit(src).netloc: yield f'{where}: loads {src} from elsewhere'
        yield from (f'{where}: {w}' for w in check_formulas(path, page))
    for css in site.rglob('*.css'):
        text = css.read_text(encoding='utf-8')
        for url in re.findall(r'(?:@import|url\()[\s"\'(]*((?:https?:)?//[^"\')]+)', text):
            yield f'{css.relative_to(site)}: loads {url} from elsewhere'
    yield from check_pages(site)
    yield from check_search(site, pages)

def check_formulas(path, page):
    for tex in re.findall(r'\\[(\[][^)\]]{0,40}|\$\$[^$]{0,40}', ' '.join(page.text)):
        yield f'a formula is not set: {tex!r}'
    formula = re.compile(r'<math[^>]*alttext="([^"]*)"[^>]*>(.*?)</math>', re.S)
    for tex, out in formula.findall(path.read_text(encoding='utf-8')):
        bad = re.findall(r'\\\w+', re.sub(r'<[^>]*>', '', out))
        if bad: yield f'{" ".join(bad)} not understood in {tex[:60]}'

def check_link(href, path, pages, site):
    u = urlsplit(href)
    if u.scheme or u.netloc: return
    target = (path.parent/unquote(u.path)).resolve() if u.path else path
    if target.is_dir(): target = target/'index.html'
    if site not in target.parents: yield f'link {href} leads out of the site'
    elif not target.exists(): yield f'link {href} leads nowhere'
    elif u.fragment and target in pages and unquote(u.fragment) not in pages[target].ids:
        yield f'link {href}: no such anchor'

def check_pages(site):
    for nb in notebooks():
        page = page_of(nb).relative_to(NBS)
        if not (site/page).exists(): yield f'{nb.relative_to(ROOT)} has no page {page}'

def check_search(site, pages):
    try: index = json.loads((site/'search.json').read_text(encoding='utf-8'))
    except (OSError, ValueError) as e: yield f'search.json: {e}'; return
    if not index: yield 'search.json is empty'
    known = {e['href'].split('#')[0] for e in index}
    for p in pages:
        if p.relative_to(site).as_posix() not in known: yield f'{p.relative_to(site)}: not in search.json'
    for e in index:
        page, _, anchor = e['href'].partition('#')
        if site/page not in pages or (anchor and unquote(anchor) not in pages[site/page].ids):
            yield f'search.json: {e["href"]} leads nowhere'

def main(site='_docs'):
    found = list(check(site))
    for line in found[:100]: print(f'    {line}')
    n = len(list(pathlib.Path(site).rglob('*.html')))
    print(f'{n} pages: ' + (f'{len(found)} to mend' if found else 'links, anchors, formulas, search good'))
    return int(bool(found))

if __name__ == '__main__': sys.exit(main(*sys.argv[1:]))
