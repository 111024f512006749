/* Finds the IR of a model folder. */
#include "model/model_ir.h"

#include "base/log.h"
#include "base/scoped.h"
#include "base/sha256.h"
#include "files/file.h"
#include "model/python_ir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char folder_file[] = "surogate_ir.json";

enum { HEX_BYTES = 2 * SHA256_BYTES + 1 };

static bool ends_with(const char *text, const char *end)
{
    size_t len = strlen(text), tail = strlen(end);
    return len >= tail && strcmp(text + len - tail, end) == 0;
}

static Status read_module(Arena *arena, const char *path, IrModule **out_module)
{
    Str text;
    TRY(file_read(arena, path, IR_MAX_BYTES, &text));
    return ir_module_parse(arena, path, text.data, text.len, out_module);
}

static const char *hash_text(const char *text, size_t len, char hex[HEX_BYTES])
{
    Sha256  sha;
    uint8_t hash[SHA256_BYTES];
    sha256_init(&sha);
    sha256_add(&sha, text, len);
    sha256_end(&sha, hash);
    for (int i = 0; i < SHA256_BYTES; i++) snprintf(hex + 2 * i, 3, "%02x", hash[i]);
    return hex;
}

/* Builds the IR by running a Python file. */
static Status build_python(Arena *arena, NamedIr ir, Str *out_text)
{
    char hex[HEX_BYTES];
    FAIL_IF(
        !ir.may_be_run, ERR_INVALID,
        "%s is Python, which is run only where the command line says so: with %s=%s or --allow-python. Or build the IR once, python3 -m "
        "surogate.dsl build %s -o %s.json, and set %s: %s.json",
        ir.file, ir.key, ir.file, ir.file, ir.kind, ir.key, ir.kind);
    TRY(python_ir_build(arena, ir.file, out_text));
    log_info("%s made an IR of %zu bytes, SHA-256 %s", ir.file, out_text->len, hash_text(out_text->data, out_text->len, hex));
    return OK;
}

static Status read_named(Arena *arena, NamedIr ir, IrModule **out_module)
{
    Str text;
    if (!ends_with(ir.file, ".py")) return read_module(arena, ir.file, out_module);
    TRY(build_python(arena, ir, &text));
    return ir_module_parse(arena, arena_printf(arena, "the IR of %s", ir.file), text.data, text.len, out_module);
}

Status model_ir_objective(Arena *arena, NamedIr ir, IrModule **out_module)
{
    Str         text;
    const char *file = ir.file;
    if (!ends_with(file, ".py")) {
        TRY(file_read(arena, file, IR_MAX_BYTES, &text));
    } else {
        TRY(build_python(arena, ir, &text));
        file = arena_printf(arena, "the IR of %s", file);
    }
    return ir_objective_parse(arena, file, text.data, text.len, out_module);
}

/* Finds the IR of `architecture` in the folder that SUROGATE_MODELS names. *out_module stays unchanged if no file there has it. */
static Status find_in_folder(Arena *arena, const char *folder, const char *architecture, IrModule **out_module)
{
    const char **names;
    size_t       count;
    Status       status = file_list(arena, folder, &names, &count);
    for (size_t i = 0; i < count && status == OK; i++) {
        IrModule *module;
        if (!ends_with(names[i], ".json")) continue;
        status = read_module(arena, arena_printf(arena, "%s/%s", folder, names[i]), &module);
        if (status != OK || strcmp(module->architecture, architecture) != 0) continue;
        if (*out_module)
            status = status_fail(ERR_INVALID, "%s and %s are both of %s; remove one", (*out_module)->file, module->file, architecture);
        *out_module = module;
    }
    return status == OK ? OK : status_prefix(status, "SUROGATE_MODELS");
}

static Status find_shipped(Arena *arena, const char *architecture, const char *config_name, IrModule **out_module)
{
    size_t      len;
    const char *text = ir_shipped_module(architecture, &len);
    if (text) {
        TRY(ir_module_parse(arena, arena_printf(arena, "the shipped IR of %s", architecture), text, len, out_module));
        return OK;
    }
    SCOPED_STRBUF(known);
    for (const char *const *name = ir_shipped_architectures(); *name; name++) strbuf_printf(&known, "%s%s", known.len ? ", " : "", *name);
    return status_fail(ERR_UNSUPPORTED,
                       "%s: architecture %s isn't supported; this version has %s. Others are files of examples/dsl, or can be "
                       "written in Python (docs/new_model.md); name the file with ir:",
                       config_name, architecture, strbuf_cstr(&known));
}

Status model_ir_find(Arena *arena, const char *dir, const JsonValue *config, const char *config_name, NamedIr ir, IrModule **out_module)
{
    const JsonValue *list = json_get(config, "architectures");
    FAIL_IF(!list || list->type != JSON_ARRAY || list->count != 1 || list->items[0].type != JSON_STRING, ERR_INVALID,
            "%s: expected one name under \"architectures\"; without it the model's layers aren't known", config_name);
    const char *architecture = list->items[0].string.data, *own = arena_printf(arena, "%s/%s", dir, folder_file);
    bool        has_own;
    TRY(file_exists(own, &has_own));
    const char *models = getenv("SUROGATE_MODELS"), *path = ir.file ? ir.file : has_own ? own : NULL;
    *out_module = NULL;
    if (path) {
        TRY(ir.file ? read_named(arena, ir, out_module) : read_module(arena, path, out_module));
        FAIL_IF(strcmp((*out_module)->architecture, architecture) != 0, ERR_INVALID, "%s is of %s, but %s says %s", path,
                (*out_module)->architecture, config_name, architecture);
        return OK;
    }
    if (models && *models) TRY(find_in_folder(arena, models, architecture, out_module));
    return *out_module ? OK : find_shipped(arena, architecture, config_name, out_module);
}

void model_ir_tell_objective(const IrModule *objective, StrBuf *notes)
{
    char hex[HEX_BYTES];
    log_note(notes, false, "%s says what is trained (%zu bytes, SHA-256 %s)", objective->file, objective->len,
             hash_text(objective->text, objective->len, hex));
}

bool model_ir_is_shipped(const IrModule *module)
{
    size_t len;
    return module->text == ir_shipped_module(module->architecture, &len);
}

void model_ir_tell(const IrModule *module, StrBuf *notes)
{
    char hex[HEX_BYTES];
    if (model_ir_is_shipped(module)) return;
    log_note(notes, false, "%s says what %s computes (%zu bytes, SHA-256 %s)", module->file, module->architecture, module->len,
             hash_text(module->text, module->len, hex));
}

Status model_ir_write(const IrModule *module, const char *folder)
{
    if (model_ir_is_shipped(module)) return OK;
    SCOPED_ARENA(arena);
    return file_write_atomic(arena_printf(&arena, "%s/%s", folder, folder_file), module->text, module->len);
}
