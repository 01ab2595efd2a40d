"""The golden excerpt of the tests, with the full Qwen3 tokenizer unpacked beside it."""
import json
import lzma
import shutil
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / 'data'


def full_tokenizer() -> dict:
    """Content of Qwen3's `tokenizer.json`: 256 bytes, then one merge a line in rank order."""
    lines = lzma.decompress((DATA / 'qwen3_tokenizer/tokens.txt.xz').read_bytes()).decode()
    tokens = lines.split('\n')
    merges = tokens[256:]
    content = json.loads((DATA / 'qwen3_tokenizer/rules.json').read_text(encoding='utf-8'))
    words = tokens[:256] + [merge.replace(' ', '') for merge in merges]
    content['model'] |= {'vocab': {word: i for i, word in enumerate(words)}, 'merges': merges}
    return content


def unpack_golden(folder: Path) -> Path:
    """Copy the excerpt to `folder` and put the tokenizer where `flashdrive verify` wants it."""
    golden = shutil.copytree(DATA / 'golden', folder)
    (golden / 'tokenizer/tokenizer.json').write_text(json.dumps(full_tokenizer()),
                                                     encoding='utf-8')
    return golden
