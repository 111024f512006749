/* CSV or, chosen by the first byte, tab-separated. Compressed files, which may grow a thousandfold, are left to fuzz_jsonl. */
#include "fuzz_records.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || (size > 1 && (data[1] == 0x1f || data[1] == 0x28))) return 0;
    fuzz_records(data[0] % 2 ? "x.tsv" : "x.csv", data + 1, size - 1);
    return 0;
}
