/* Where CUDA's libraries are searched (device/cuda/libraries.c), without a GPU: folder names contain the special characters of patterns. */
#include "device/cuda/cuda.h"
#include "device/cuda/libraries.h"

#include "test.h"

#include <dlfcn.h>
#include <unistd.h>

static char dir[] = "/tmp/surogate-libraries-XXXXXX";

/* Makes DIR/folder/libstandin.so.7, a copy of a library that the compiler made; false: there is no compiler. */
static bool make_library(const char *folder)
{
    char command[2048];
    snprintf(command, sizeof command, "mkdir -p '%s/%s' && echo 'int standin = 7;' | cc -shared -fPIC -x c -o '%s/%s/libstandin.so.7' -",
             dir, folder, dir, folder);
    return system(command) == 0;
}

static void expect_found(const char *folder)
{
    char  want[512], found[512] = "";
    void *handle = cuda_library_open("libstandin.so.7", "nvidia_standin", found, sizeof found);
    snprintf(want, sizeof want, "%s/%s/libstandin.so.7", dir, folder);
    EXPECT(handle != NULL);
    EXPECT_STR(found, want);
    if (handle) dlclose(handle);
}

static void folders_may_be_called_as_patterns(void)
{
    static const char *const variables[] = {"SUROGATE_CUDA_LIBS", "CUDA_HOME", "VIRTUAL_ENV", "HOME"};
    static const char *const below[] = {"", "/lib64", "/lib/python3.12/site-packages/nvidia/standin/lib",
                                        "/.local/lib/python3.12/site-packages/nvidia/standin/lib"};
    static const char *const names[] = {"plain", "a[old]", "b*c", "d?e", "f\\g", "[h"};
    char                     folder[512], value[512];
    setenv("PATH", "/usr/bin:/bin", 1);
    for (size_t v = 0; v < sizeof variables / sizeof *variables; v++)
        for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
            snprintf(folder, sizeof folder, "%zu/%s%s", v, names[n], below[v]);
            if (!make_library(folder)) SKIP("no compiler here");
            for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
            snprintf(value, sizeof value, "%s/%zu/%s", dir, v, names[n]);
            setenv(variables[v], value, 1);
            expect_found(folder);
        }
}

static void a_list_of_folders_may_hold_patterns(void)
{
    char value[512];
    if (!make_library("list/one/lib")) SKIP("no compiler here");
    snprintf(value, sizeof value, "/nowhere:%s/list/*/lib", dir);
    setenv("SUROGATE_CUDA_LIBS", value, 1);
    expect_found("list/one/lib");
}

int main(int argc, char **argv)
{
    static const TestCase cases[] = {TEST(folders_may_be_called_as_patterns), TEST(a_list_of_folders_may_hold_patterns)};
    char                  command[300];
    if (!mkdtemp(dir)) return 1;
    int status = test_run(cases, sizeof cases / sizeof cases[0], argc, argv);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) != 0 || status;
}
