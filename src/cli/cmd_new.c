/* surogate new --arch qwen3-0.6b --random DIR: writes a model folder of a shipped family and size. */
#include "cli/cli.h"

#include "base/log.h"
#include "device/device.h"
#include "model/new.h"

Status cmd_new(CliArgs *args)
{
    NewOptions options = {.max_shard_bytes = 5000000000};
    bool       list = false, done;
    int64_t    seed = 42;
    const Flag flags[] = {
        {"--arch", FLAG_TEXT, &options.arch, "NAME", "family and size: qwen3-0.6b, llama-3.2-1b, ..."},
        {"--random", FLAG_SWITCH, &options.weights, NULL, "write random weights too; else config.json only, for from_scratch: true"},
        {"--tokenizer", FLAG_TEXT, &options.tokenizer, "DIR",
         "copy this folder's tokenizer files, and take vocab_size and special ids from it"},
        {"--seed", FLAG_INT, &seed, "N", "of the weights (42)"},
        {"--list", FLAG_SWITCH, &list, NULL, "names of all families and sizes"},
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    if (list) {
        StrBuf out = {0};
        Status status = new_list(&out);
        if (status == OK) status = cli_print(&out);
        strbuf_deinit(&out);
        return status;
    }
    FAIL_IF(args->num_words < 1 || !options.arch, ERR_INVALID, "usage: surogate new %s", args->arguments);
    options.settings = args->words + 1;
    options.num_settings = args->num_words - 1;
    options.seed = (uint64_t)seed;
    Device *device;
    TRY(device_cpu_create(0, &device));
    options.pool = device_cpu_pool(device);
    Status status = new_model(&options, args->words[0]);
    device->api->destroy(device);
    if (status == OK) log_info("wrote %s", args->words[0]);
    return status;
}
