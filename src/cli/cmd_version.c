/* surogate version */
#include "cli/cli.h"

#include "device/device.h"
#include "ir/module.h"
#include "base/version.h"

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

Status cmd_version(CliArgs *args)
{
    bool       json = false, done;
    const Flag flags[] = {{"--json", FLAG_SWITCH, &json, NULL, "as one JSON object"}};
    TRY(cli_parse(args, flags, 1, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 0));
    Device     *device;
    DeviceFacts facts;
    TRY(device_cpu_create(0, &device));
    Status status = device->api->facts(device, &facts);
    device->api->destroy(device);
    TRY(status);
    StrBuf out = {0};
    if (json) {
        strbuf_puts(&out, "{\"version\": \"" SUROGATE_VERSION "\", \"compiler\": \"" COMPILER "\", \"cpu\": \"");
        strbuf_printf(&out, "%s\", \"threads\": %d, \"architectures\": [", facts.name, facts.num_workers);
        for (const char *const *name = ir_shipped_architectures(); *name; name++)
            strbuf_printf(&out, "%s\"%s\"", name == ir_shipped_architectures() ? "" : ", ", *name);
        strbuf_puts(&out, "]}\n");
    } else {
        strbuf_printf(&out, "surogate %s, built with %s\n%s, %d threads\n", SUROGATE_VERSION, COMPILER, facts.name, facts.num_workers);
        for (const char *const *name = ir_shipped_architectures(); *name; name++) strbuf_printf(&out, "%s\n", *name);
    }
    status = cli_print(&out);
    strbuf_deinit(&out);
    return status;
}
