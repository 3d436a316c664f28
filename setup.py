"Package metadata, all of it read from settings.ini"
import configparser, pathlib, shlex

from setuptools import find_packages, setup

here = pathlib.Path(__file__).parent
cfg = configparser.ConfigParser(delimiters=['='])
cfg.read(here/'settings.ini', encoding='utf-8')
cfg = cfg['DEFAULT']
extras = {k.removesuffix('_requirements'): shlex.split(v)
          for k, v in cfg.items() if k.endswith('_requirements')}

setup(
    name=cfg['lib_name'], version=cfg['version'],
    description=cfg['description'], keywords=cfg['keywords'].split(),
    author=cfg['author'], author_email=cfg['author_email'], license='MIT', url=cfg['git_url'],
    long_description=(here/'README.md').read_text(encoding='utf-8') if (here/'README.md').exists() else '',
    long_description_content_type='text/markdown',
    python_requires=f">={cfg['min_python']}",
    packages=find_packages(include=['llamaref*']) + ['llamaref.kernels'],
    package_dir={'llamaref.kernels': 'kernels'},
    package_data={'llamaref.kernels': ['*.cl', '*.h'], 'llamaref': ['assets/*']},
    install_requires=shlex.split(cfg['requirements']), extras_require=extras,
    entry_points={'console_scripts': cfg['console_scripts'].split(),
                  'nbdev': ['llamaref=llamaref._modidx:d']},
    zip_safe=False,
)
