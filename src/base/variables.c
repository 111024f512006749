/* The list of all environment variables: tests/cli/variables.t compares it with the sources and with docs/debugging.md. */
#include "base/variables.h"

#include "base/log.h"

#include <string.h>

#define PREFIX "SUROGATE_"

static const char *const known[] = {"SUROGATE_AVX512",      "SUROGATE_CUDA_EAGER", "SUROGATE_CUDA_LIBS",
                                    "SUROGATE_CUDA_PLUGIN", "SUROGATE_LIBRARY",    "SUROGATE_MODELS",
                                    "SUROGATE_PYTHON",      "SUROGATE_SECRET",     "SUROGATE_TEST_SHARED"};
enum { NUM_KNOWN = sizeof known / sizeof *known };

static void check(const char *entry)
{
    char   name[64];
    size_t len = strcspn(entry, "=");
    if (len >= sizeof name) len = sizeof name - 1;
    memcpy(name, entry, len);
    name[len] = 0;
    for (int i = 0; i < NUM_KNOWN; i++)
        if (strcmp(name, known[i]) == 0) return;
    const char *near = nearest_name(name, known, NUM_KNOWN);
    log_warn("the environment has %s, which nothing reads%s%s%s", name, near ? "; did you mean " : "; docs/debugging.md lists what is read",
             near ? near : "", near ? "?" : "");
}

void variables_check(void)
{
    extern char **environ;
    for (char **entry = environ; entry && *entry; entry++)
        if (strncmp(*entry, PREFIX, strlen(PREFIX)) == 0) check(*entry);
}
