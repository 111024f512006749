/* Any run file is read or refused. A run file that is read prints as a run file; reading and printing that one gives the same text. The
 * bytes after the first NUL are an override. */
#include "config/config.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Config         config;
    StrBuf         first = {0}, second = {0};
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t         len = nul ? (size_t)(nul - data) : size;
    char          *override = nul ? strndup((const char *)nul + 1, size - len - 1) : NULL;
    const char    *overrides[] = {override};
    if (config_parse("fuzz", (const char *)data, len, overrides, override != NULL, &config, NULL) == OK) {
        config_print(&config, &first);
        config_deinit(&config);
    }
    if (first.len && size % 8 == 3) { /* a whole printed config takes ten times as long as a fuzzed input */
        if (config_parse("again", first.data, first.len, NULL, 0, &config, NULL) != OK) abort();
        config_print(&config, &second);
        config_deinit(&config);
        if (strcmp(first.data, second.data) != 0) abort();
    }
    strbuf_deinit(&first);
    strbuf_deinit(&second);
    free(override);
    return 0;
}
