/* surogate export MODEL_DIR --to gguf: writes one file for llama.cpp and programs built on it. */
#include "cli/cli.h"

#include "base/log.h"
#include "device/device.h"
#include "files/folder.h"
#include "files/hub.h"
#include "model/gguf_export.h"
#include "model/merge.h"

#include <string.h>

typedef struct Export {
    Arena      *arena;
    const char *dir;     /* the base model's folder */
    const char *adapter; /* NULL: none */
    const char *out;     /* the GGUF file */
    GgufPreset  preset;
    bool        adapter_only;
    ThreadPool *pool;
} Export;

/* If `dir` contains only an adapter, exports that adapter over its base. */
static Status find_base(Export *export)
{
    bool        is_adapter, is_model;
    PeftAdapter adapter;
    TRY(peft_is_adapter_dir(export->dir, &is_adapter));
    TRY(file_exists(arena_printf(export->arena, "%s/config.json", export->dir), &is_model));
    if (export->adapter || !is_adapter || is_model) return OK;
    TRY(peft_open(export->arena, export->dir, &adapter));
    FAIL_IF(!adapter.base_model, ERR_INVALID,
            "%s/adapter_config.json names no base model; give the base as the model and this folder with --adapter", export->dir);
    export->adapter = export->dir;
    export->dir = adapter.base_model;
    return OK;
}

static const char *last_name(Arena *arena, const char *dir)
{
    const char *repo = hub_snapshot_repo(arena, dir);
    if (repo) dir = repo;
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/') len--;
    size_t begin = len;
    while (begin > 0 && dir[begin - 1] != '/') begin--;
    return arena_strndup(arena, dir + begin, len - begin);
}

/* dir: the folder of the model; shown: its name in messages. */
static Status export_model(const Export *export, const char *dir, const char *shown)
{
    HfModel *model;
    TRY(hf_model_open(export->arena, dir, &model));
    Status status = gguf_export(model, shown, last_name(export->arena, export->dir), export->preset, export->out, export->pool);
    hf_model_close(model);
    return status;
}

/* Merges the adapter into a temporary folder beside the file, and exports that. */
static Status export_merged(const Export *export, HfModel *base, const PeftAdapter *adapter)
{
    FolderWriter folder;
    bool         has_tokenizer; /* the adapter's folder has a tokenizer, and its files take precedence */
    TRY(file_exists(arena_printf(export->arena, "%s/tokenizer.json", export->adapter), &has_tokenizer));
    TRY(gguf_check_model(base)); /* before the slow work */
    TRY(hf_model_open_weights(base));
    TRY(folder_begin(export->arena, arena_printf(export->arena, "%s.merged", export->out), &folder));
    Status status = merge_adapter(base, adapter, false, folder.partial, INT64_MAX, export->pool);
    if (status == OK) status = export_model(export, folder.partial, has_tokenizer ? export->adapter : export->dir);
    return folder_abandon(&folder, status);
}

static Status export_adapted(const Export *export)
{
    HfModel    *base;
    PeftAdapter adapter;
    TRY(hf_model_open(export->arena, export->dir, &base));
    Status status = peft_open(export->arena, export->adapter, &adapter);
    if (status == OK)
        status =
            export->adapter_only ? gguf_export_adapter(base, &adapter, export->preset, export->out) : export_merged(export, base, &adapter);
    hf_model_close(base);
    return status;
}

/* MODEL-TYPE.gguf, in the current folder. */
static const char *default_out(Arena *arena, const char *dir, const char *type)
{
    return arena_printf(arena, "%s-%s.gguf", last_name(arena, dir), type);
}

static Status run(Export *export)
{
    Device *device;
    TRY(find_base(export));
    FAIL_IF(export->adapter_only && !export->adapter, ERR_INVALID, "--adapter-only: name the adapter with --adapter DIR");
    TRY(device_cpu_create(0, &device));
    export->pool = device_cpu_pool(device);
    Status status = export->adapter ? export_adapted(export) : export_model(export, export->dir, export->dir);
    device->api->destroy(device);
    return status;
}

static Status tell(const Export *export)
{
    char    text[32];
    int64_t bytes;
    TRY(file_size(export->out, &bytes));
    log_info("wrote %s (%s)", export->out, size_text(bytes, text));
    return OK;
}

Status cmd_export(CliArgs *args)
{
    const char *to = NULL, *type = NULL, *out = NULL, *adapter = NULL;
    bool        adapter_only = false, done;
    const Flag  flags[] = {
         {"--to", FLAG_TEXT, &to, "FORMAT", "gguf"},
         {"--type", FLAG_TEXT, &type, "TYPE", "what matrices are stored as: f32, f16, bf16, q8_0, q6_K, q4_K_M or q4_0"},
         {"--out", FLAG_TEXT, &out, "FILE", "the file to write (NAME-TYPE.gguf here)"},
         {"--adapter", FLAG_TEXT, &adapter, "DIR", "merge this LoRA adapter into the model first"},
         {"--adapter-only", FLAG_SWITCH, &adapter_only, NULL, "write the adapter alone, for a file of its base"},
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 1));
    FAIL_IF(!to || strcmp(to, "gguf") != 0, ERR_INVALID, "--to %s: expected gguf", to ? to : "is missing");
    FAIL_IF(!type, ERR_INVALID, "--type is missing: f32, f16, bf16, q8_0, q6_K, q4_K_M or q4_0");
    Export export = {.arena = &args->arena, .dir = args->words[0], .adapter = adapter, .adapter_only = adapter_only};
    TRY(gguf_parse_preset(type, &export.preset));
    export.out = out ? out : default_out(&args->arena, args->words[0], type);
    TRY(run(&export));
    return tell(&export);
}
