/* JSON lines, JSON arrays and text, plain or compressed, and rows of parquet; the first byte chooses. */
#include "fuzz_records.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"x.jsonl", "x.json", "x.txt", "x.parquet"};
    if (size == 0) return 0;
    fuzz_records(names[data[0] % 4], data + 1, size - 1);
    return 0;
}
