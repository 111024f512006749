/* Any bytes open or are refused. In a file that opens, every tensor can be found and decoded, and every key read as its type. */
#include "files/gguf.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode_ends(const GgufTensor *tensor)
{
    float   values[GGUF_MOST_BLOCK];
    int     block = gguf_block(tensor->type);
    int64_t last = tensor->numel / block - 1;
    gguf_decode(tensor->type, tensor->data, block, values);
    gguf_decode(tensor->type, (const char *)tensor->data + gguf_bytes(tensor->type, last * block), block, values);
}

static void read_key(const GgufFile *file, const char *key)
{
    Arena  arena = {0};
    Str    text, *texts;
    double number, *numbers;
    bool   flag;
    size_t count, sum = 0;
    if (gguf_get_str(file, key, &text)) sum += text.len ? (uint8_t)text.data[text.len - 1] : 0;
    if (gguf_get_strs(&arena, file, key, &texts, &count))
        for (size_t i = 0; i < count; i++) sum += texts[i].len ? (uint8_t)texts[i].data[texts[i].len - 1] : 0;
    if (gguf_get_numbers(&arena, file, key, &numbers, &count) && count) sum += numbers[count - 1] > 0;
    (void)gguf_get_number(file, key, &number);
    (void)gguf_get_bool(file, key, &flag);
    if (sum == SIZE_MAX) abort();
    arena_deinit(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const keys[] = {"general.alignment", "general.architecture", "name", "count", "is", "list", ""};
    GgufFile                *file;
    char                    *copy = malloc(size + 1);
    if (size) memcpy(copy, data, size);
    if (gguf_open_memory("fuzz", copy, size, &file) == OK) {
        for (size_t i = 0; i < gguf_count(file); i++) {
            const GgufTensor *tensor = gguf_at(file, i);
            char             *name = malloc(tensor->name.len + 1);
            memcpy(name, tensor->name.data, tensor->name.len);
            name[tensor->name.len] = 0;
            if (strlen(name) == tensor->name.len && gguf_find(file, name) != tensor) abort();
            free(name);
            decode_ends(tensor);
        }
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) read_key(file, keys[i]);
        gguf_close(file);
    }
    free(copy);
    return 0;
}
