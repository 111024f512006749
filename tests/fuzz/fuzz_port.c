/* Any run file of another tool is ported or refused; the ported text is a valid run file. The last byte chooses the tool. */
#include "port/port.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const tools[] = {NULL, "axolotl", "llamafactory", "llamafactory-v1", "trl"};
    Arena                    arena = {0};
    StrBuf                   out = {0}, problems = {0};
    StrList                  lost = {0};
    Config                   config;
    PortOptions              options = {.from = tools[size ? data[size - 1] % 5 : 0], .dataset_dir = "tests/cli/port/registry"};
    if (port_parse(&arena, "fuzz", (const char *)data, size ? size - 1 : 0, &options, &out, &lost, &problems) == OK) {
        if (config_parse("ported", out.data, out.len, NULL, 0, &config, NULL) != OK) abort();
        config_deinit(&config);
    }
    strbuf_deinit(&out);
    strbuf_deinit(&problems);
    arena_deinit(&arena);
    return 0;
}
