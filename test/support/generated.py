"""Message classes that rosidl generates from field lists, for packages that are not on PyPI."""
import importlib
import json
import os
import sys
from pathlib import Path


def generate(folder: Path, package: str, definitions: dict[str, str], dependencies=()):
    """
    Write `package` with the Python classes of `definitions` (name -> .msg text) into `folder`.

    As rosidl makes them, but for the C library: they check what is assigned, and can't be sent.
    """
    from rosidl_adapter.msg import convert_msg_to_idl
    from rosidl_generator_py.generate_py_impl import generate_py

    source, out = folder / 'source' / package, folder / package
    (source / 'msg').mkdir(parents=True)
    (out / 'msg').mkdir(parents=True)
    (out / '__init__.py').write_text('')
    for name, text in definitions.items():
        path = source / 'msg' / f'{name}.msg'
        path.write_text(text)
        convert_msg_to_idl(source, package, Path('msg', f'{name}.msg'), source / 'msg')
    arguments = folder / f'{package}.json'
    arguments.write_text(json.dumps({
        'package_name': package, 'output_dir': str(out),
        'template_dir': str(Path(sys.prefix, 'share', 'rosidl_generator_py', 'resource')),
        'idl_tuples': [f'{source}:msg/{name}.idl' for name in definitions],
        'ros_interface_dependencies': list(dependencies), 'target_dependencies': [],
        'type_description_tuples': []}))
    generate_py(str(arguments), [])
    for path in (out / 'msg').glob('*.c'):
        os.unlink(path)


def load(monkeypatch, folder: Path, package: str):
    """Import `package.msg` from the folder for this test."""
    monkeypatch.syspath_prepend(folder)
    for name in (package, f'{package}.msg'):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(f'{package}.msg')
