"""The figures of the README are those of the results files, and its links lead somewhere."""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_figures_are_those_of_the_results():
    done = subprocess.run([sys.executable, ROOT / 'bench/readme_tables.py', '--check'],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_links_to_files_lead_to_files():
    links = re.findall(r'\]\(([^)#]+)\)', (ROOT / 'README.md').read_text(encoding='utf-8'))
    assert [t for t in links if not t.startswith('http') and not (ROOT / t).exists()] == []
