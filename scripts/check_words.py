"""The check of check_house.py that sentences of comments and pages are short (CONTRIBUTING.md, "Prose").

Refused are a sentence of more than MAX_WORDS words, and one that begins with a noun clause of "What" or
"Whoever". A formula, which is a sentence with '=' in it, may be longer. Code within a comment stands two
spaces or more behind its neighbours, and is left out. So are code blocks, headings and hidden comments of a
page. Each cell of a table, item of a list and trailing comment is a text of its own.
"""
import re

MAX_WORDS = 30
COMMENTED = (".h", ".cpp", ".cu", ".cuh", ".inc")
ITEM = re.compile(r"(?:[-*]|\d+\.) +")
STRING = re.compile(r'"(?:\\.|[^"\\])*"')
COMMENT = re.compile(r"//+[<!]?(?!/)")
END = re.compile(r"(?<!\.)[.!?][\"')`*\]]*$")
NO_END = re.compile(r"\W*(e\.g|i\.e|vs|cf)\.$")
NOUN = re.compile(r"\W*(What|Whoever)[*`]* (?!.*\?[\"')`*\]]*$)")
LINK = re.compile(r"\]\([^)]*\)")


def comments(lines):
    """The texts of comments, each a list of (line number, part)."""
    texts, column, item = [], -1, False  # the column of the comment before this line; it is of a list
    for number, line in enumerate(lines, 1):
        match = COMMENT.search(STRING.sub(lambda s: "_" * len(s.group()), line))
        if not match or line[:match.start()].endswith(":"):
            column = -1
            continue
        part = line[match.end():].removesuffix("\\").rstrip()
        words = part.strip()
        alone = not line[:match.start()].strip()
        goes_on = alone and match.start() == column
        code = alone and len(part) - len(part.lstrip()) > 2 and not (goes_on and item)
        if not words or code or re.search(r"\S {2,}\S", words):
            column = -1  # an empty line, code or a table
            continue
        if not goes_on or ITEM.match(words):
            texts.append([])
            item = bool(ITEM.match(words))
        texts[-1].append((number, ITEM.sub("", words, count=1) if ITEM.match(words) else words))
        column = match.start()
    return texts


def paragraphs(lines):
    """The texts of a page, each a list of (line number, part)."""
    texts, fence, hidden, begins = [], False, False, True
    for number, line in enumerate(lines, 1):
        words = line.strip().lstrip("> ")
        if not fence and (hidden or words.startswith("<!--")):
            hidden, begins = "-->" not in words, True
        elif words.startswith(("```", "~~~")):
            fence, begins = not fence, True
        elif fence or not words or words.startswith("#"):
            begins = True
        elif words.startswith("|"):
            texts += [[(number, cell)] for cell in words.split("|")]
            begins = True
        else:
            if begins or ITEM.match(words):
                texts.append([])
            texts[-1].append((number, ITEM.sub("", words, count=1) if ITEM.match(words) else words))
            begins = False
    return texts


def sentences(text):
    """(number of the first line, sentence) of each sentence."""
    first, words = 0, []
    for number, part in text:
        for word in part.split():
            first = first if words else number
            words.append(word)
            if END.search(word) and not NO_END.match(word):
                yield first, " ".join(words)
                words = []
    if words:
        yield first, " ".join(words)


def check_words(name, lines, out):
    """Adds the findings of a file to `out`."""
    if not name.endswith(COMMENTED + (".md",)):
        return
    for text in paragraphs(lines) if name.endswith(".md") else comments(lines):
        for number, sentence in sentences(text):
            count = sum(bool(re.search(r"\w", word)) for word in LINK.sub("]", sentence).split())
            begin = " ".join(sentence.split()[:6])
            if count > MAX_WORDS and "=" not in sentence:
                out.append(f"{name}:{number}: a sentence of {count} words, the limit is {MAX_WORDS}: "
                           f"{begin} ...")
            if NOUN.match(sentence):
                out.append(f"{name}:{number}: begins with a noun clause: {begin} ...")
