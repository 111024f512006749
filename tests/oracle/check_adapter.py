#!/usr/bin/env python3
"""Does an adapter folder that Surogate saved mean the same to PEFT? Loads the base model BASE and the adapter DIR,
computes logits in fp64 and compares them with those Surogate printed, as check_saved.py does (LOGITS: see there).

  python3 tests/oracle/check_adapter.py --base BASE DIR LOGITS.json
"""
import warnings

from peft import PeftModel

from check_saved import compare, load_exact, parser

if __name__ == "__main__":
    ap = parser(__doc__)
    ap.add_argument("--base", required=True, metavar="BASE")
    arguments = ap.parse_args()
    warnings.filterwarnings("error", message=".*(missing|unexpected).*")   # PEFT only warns of absent A and B
    compare(PeftModel.from_pretrained(load_exact(arguments.base), arguments.model).double(), arguments)
