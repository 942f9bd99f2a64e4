"""The check of check_house.py that every operation, optimizer, schedule and module is compared with PyTorch.
It needs no PyTorch."""

import re

# Random draws, without a row in tests/support/compare: PyTorch draws other numbers.
DRAWS = {"multinomial", "bernoulli", "uniform_", "normal_", "bernoulli_"}
PUBLIC_OP = re.compile(r"^WEFT_API (?:Tensor|bool|\w+Result|std::vector<Tensor>) (\w+)\(([^;]*)")
BY_NUMBER = re.compile(r"\w+ \w+, Scalar \w+\)")
FROM_NUMBER = re.compile(r"Scalar \w+, \w+ \w+\)")
IN_PLACE = re.compile(r"^  Tensor& (\w+_)\((.*?)\)", re.MULTILINE)
WRITE = re.compile(r"WEFT_WRITE\((\w+_)\)")
MODULE = re.compile(r"^class WEFT_API (\w+) : public (Module|Recurrent|RecurrentCell) {", re.MULTILINE)
NO_FORWARD = {"ModuleList", "ModuleDict", "Recurrent", "RecurrentCell"}
ON_STATE = {"requires_grad_", "detach_"}  # methods that write no element


def check_compared(names, texts, out):
    """An op, a method in place, an optimizer, a schedule and a module has a row for the comparison with
    PyTorch, also where a number stands in the place of a tensor. Recurrent layers share rows."""
    folder = "tests/support/compare/"
    code = "\n".join(line for n in names if n.startswith(folder) and n.endswith(".cpp")
                     for line in texts.get(n, []))
    if not code:
        return
    rows = set(re.findall(r"WEFT_ROW\((\w+)\)", code)) | set(re.findall(r'\{"([\w.]+)", ', code))
    rows |= set(re.findall(r'\brow(?:<[^;]*?>)?\(\s*rows,\s*"([\w.]+)"', code))
    for part in code.split("in_place<")[1:]:
        rows |= {f"{name}_" for name in re.findall(r'>\(rows,\s*"([\w.]+)"\)', part)[:1]}
    wanted = []  # (file, the row)
    for name in names:
        text = "\n".join(texts.get(name, []))
        if re.match(r"autograd/ops/ops\w*\.h$", name):
            for line in text.splitlines():
                match = PUBLIC_OP.match(line)
                if match:
                    op, arguments = match.groups()
                    kind = (".number" if BY_NUMBER.match(arguments) else
                            ".from" if FROM_NUMBER.match(arguments) else "")
                    wanted.append((name, op + kind))
        if name == "tensor/tensor.h":
            methods = IN_PLACE.findall(text)
            several = {m for m, a in methods if "Tensor&" in a}
            for method, arguments in methods:
                number = method in several and "Scalar value" in arguments and (
                    arguments == "Scalar value" or "TensorIndex" in arguments)
                wanted.append((name, method[:-1] + ".number_" if number else method))
            writes = set(WRITE.findall("\n".join(texts.get("tensor/index.h", []))))
            out.extend(f"tensor/index.h: {method} has no WEFT_WRITE, so x[mask].{method}() would be lost"
                       for method in sorted({m for m, _ in methods} - ON_STATE - {"index_put_"} - writes))
        if name == "optim/schedule.h":
            classes = re.findall(r"^class WEFT_API (\w+)", text, re.MULTILINE)
            wanted += [(name, f"schedule.{c}") for c in classes if c != "FactorSchedule"]
        if re.match(r"optim/rules/\w+\.h$", name):
            rules = re.findall(r"^struct WEFT_API (\w+)Rule\b", text, re.MULTILINE)
            wanted += [(name, f"optim.{rule}") for rule in rules]
        if re.match(r"nn/\w+\.h$", name):
            modules = re.findall(r"^WEFT_ACTIVATION\((\w+),", text, re.MULTILINE)
            modules += [c for c, base in MODULE.findall(text)
                        if base == "Module" or f"nn::{c} layer(" not in code]
            wanted += [(name, f"nn.{c}") for c in modules if c not in NO_FORWARD]
    for name, row in sorted(set(wanted)):
        if row not in rows and row not in DRAWS and row not in ON_STATE:
            out.append(f"{name}: {row} has no row in {folder}")
