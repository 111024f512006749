/* CSV and, by the first byte, tab-separated. */
#include "fuzz_records.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    fuzz_records(data[0] % 2 ? "x.tsv" : "x.csv", data + 1, size - 1);
    return 0;
}
