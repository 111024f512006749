/* sum_i w_i s_i B_i A_i = [w_1 s_1 B_1, w_2 s_2 B_2, ...] [A_1; A_2; ...]: a sum of low-rank products is one product, whose rank is the sum
 * of their ranks. */
#include "model/peft_combine.h"

#include "base/scoped.h"
#include "passes/peft_names.h"

#include <stdlib.h>
#include <string.h>

typedef struct Combiner {
    const WeightedAdapter *parts;
    int                    count;
    StFile               **files;   /* indexed by part */
    LoraModule            *modules; /* modules of all parts, sorted by path, each once; rank and alpha: the sum of the parts' ranks */
    int                    num_modules;
    Arena                  arena;
} Combiner;

static int by_path(const void *a, const void *b)
{
    return strcmp(((const LoraModule *)a)->path, ((const LoraModule *)b)->path);
}

static Status find_modules(Combiner *c)
{
    int total = 0;
    for (int p = 0; p < c->count; p++) total += c->parts[p].adapter.lora.num_modules;
    c->modules = arena_array(&c->arena, LoraModule, total);
    total = 0;
    for (int p = 0; p < c->count; p++)
        for (int i = 0; i < c->parts[p].adapter.lora.num_modules; i++) c->modules[total++] = c->parts[p].adapter.lora.modules[i];
    qsort(c->modules, (size_t)total, sizeof *c->modules, by_path);
    for (int i = 0; i < total; i++) {
        LoraModule *last = c->num_modules ? &c->modules[c->num_modules - 1] : NULL;
        if (last && strcmp(last->path, c->modules[i].path) == 0)
            last->r += c->modules[i].r;
        else
            c->modules[c->num_modules++] = c->modules[i];
    }
    for (int i = 0; i < c->num_modules; i++) c->modules[i].alpha = (double)c->modules[i].r;
    return OK;
}

/* Only pairs of linear layers can be added up: refuses other tensors. */
static Status check_tensors(Combiner *c, int part)
{
    const PeftAdapter *adapter = &c->parts[part].adapter;
    size_t             count = st_count(c->files[part]), known = 0;
    for (int i = 0; i < adapter->lora.num_modules; i++) {
        const char     *path = adapter->lora.modules[i].path;
        const StTensor *a = peft_find(c->files[part], path, PEFT_END_A), *b = peft_find(c->files[part], path, PEFT_END_B);
        FAIL_IF(!a || !b || a->ndim != 2 || b->ndim != 2 || a->dim[0] != b->dim[1], ERR_INVALID,
                "%s: the halves of %s don't fit one another", adapter->dir, path);
        TRY(st_check_range(a, DT_F32));
        TRY(st_check_range(b, DT_F32));
        known += 2;
    }
    FAIL_IF(
        known != count, ERR_UNSUPPORTED,
        "%s holds more than pairs of linear layers: such an adapter can't be weighted, or added to another; merge it alone, without a weight",
        adapter->dir);
    return OK;
}

static Status open_parts(Combiner *c)
{
    c->files = arena_array(&c->arena, StFile *, c->count);
    for (int p = 0; p < c->count; p++) {
        const PeftAdapter *adapter = &c->parts[p].adapter, *first = &c->parts[0].adapter;
        FAIL_IF(adapter->lora.use_dora, ERR_UNSUPPORTED,
                "%s is an adapter of DoRA (use_dora), whose rows are divided by their norms: it can't be weighted, or added to another; "
                "merge it alone, without a weight",
                adapter->dir);
        FAIL_IF(adapter->base_format != first->base_format, ERR_INVALID, "%s was trained over weights in %s, %s over weights in %s: %s",
                first->dir, first->base_format ? first->base_format->name : "their own format", adapter->dir,
                adapter->base_format ? adapter->base_format->name : "their own format", "say with --qlora over which they are merged");
        TRY(peft_open_tensors(adapter->dir, &c->files[p]));
        TRY(check_tensors(c, p));
    }
    return find_modules(c);
}

static Status declare(Combiner *c, StDecl *decls)
{
    for (int i = 0; i < c->num_modules; i++) {
        const char *path = c->modules[i].path;
        int64_t     in = 0, out = 0;
        for (int p = 0; p < c->count; p++) {
            const StTensor *a = peft_find(c->files[p], path, PEFT_END_A), *b = peft_find(c->files[p], path, PEFT_END_B);
            if (!a) continue;
            FAIL_IF(in && (in != a->dim[1] || out != b->dim[0]), ERR_INVALID, "%s: %s has other dims than in the adapters before it: %s",
                    a->path, path, "are they of one model?");
            in = a->dim[1];
            out = b->dim[0];
        }
        decls[2 * i] = (StDecl){arena_printf(&c->arena, PEFT_PREFIX PEFT_TENSOR, path, PEFT_A), ST_F32, 2, {c->modules[i].r, in}, NULL};
        decls[2 * i + 1] =
            (StDecl){arena_printf(&c->arena, PEFT_PREFIX PEFT_TENSOR, path, PEFT_B), ST_F32, 2, {out, c->modules[i].r}, NULL};
    }
    return OK;
}

/* Writes a part's B, scaled, into the columns of `out` (rows, all) from `first` on. */
static Status put_b(const Combiner *c, int part, const LoraModule *own, const StTensor *b, float *out, int64_t all, int64_t first)
{
    double scale = c->parts[part].weight * lora_scale(&c->parts[part].adapter.lora, own->r, own->alpha);
    for (int64_t row = 0; row < b->dim[0]; row++) {
        float *at = out + row * all + first;
        TRY(st_to_f32(b, row * own->r, own->r, at));
        for (int64_t k = 0; k < own->r; k++) at[k] = (float)(scale * (double)at[k]);
    }
    return OK;
}

static Status put_half(Combiner *c, const LoraModule *module, bool is_a, float *out)
{
    int64_t first = 0; /* sum of the ranks of the parts before this one */
    for (int p = 0; p < c->count; p++) {
        const StTensor *half = peft_find(c->files[p], module->path, is_a ? PEFT_END_A : PEFT_END_B);
        if (!half) continue;
        const LoraModule *own = lora_find_module(&c->parts[p].adapter.lora, module->path);
        if (is_a)
            TRY(st_to_f32(half, 0, half->numel, out + first * half->dim[1]));
        else
            TRY(put_b(c, p, own, half, out, module->r, first));
        first += own->r;
    }
    return OK;
}

typedef struct Writing {
    Combiner     *combiner;
    const StDecl *decls;
} Writing;

static Status append_half(void *context, size_t index, FileWriter *out)
{
    const Writing             *w = context;
    size_t                     bytes = st_decl_bytes(&w->decls[index]);
    SCOPED(scoped_free) float *values = malloc(bytes);
    FAIL_IF(!values, ERR_NO_FIT, "no memory for %s", w->decls[index].name);
    TRY(put_half(w->combiner, &w->combiner->modules[index / 2], index % 2 == 0, values));
    return file_writer_append(out, values, bytes);
}

static Status write_config(Combiner *c, const char *folder)
{
    JsonMember  *numbers = arena_array(&c->arena, JsonMember, c->num_modules), chosen[2];
    const char **paths = arena_array(&c->arena, const char *, c->num_modules);
    for (int i = 0; i < c->num_modules; i++) {
        paths[i] = c->modules[i].path;
        numbers[i] = (JsonMember){str_of(paths[i]), {.type = JSON_INT, .integer = c->modules[i].r}};
    }
    JsonValue by_module = {.type = JSON_OBJECT, .count = (uint32_t)c->num_modules, .members = numbers};
    chosen[0] = (JsonMember){str_of("rank_pattern"), by_module};
    chosen[1] = (JsonMember){str_of("alpha_pattern"), by_module};
    JsonValue   selection = {.type = JSON_OBJECT, .count = 2, .members = chosen};
    LoraOptions lora = {.enabled = true, .r = 1, .alpha = 1, .num_targets = c->num_modules, .targets = paths, .selection = &selection};
    TRY(peft_write_config(&lora, NULL, folder));
    return peft_write_base_format(c->parts[0].adapter.base_format, folder);
}

/* Copies the tokenizer's files of the first adapter that has a tokenizer.json. Later adapters with a different one are refused. */
static Status copy_tokenizer(Combiner *c, const char *folder)
{
    uint64_t first = 0;
    for (int p = 0; p < c->count; p++) {
        const char *dir = c->parts[p].adapter.dir, *path = arena_printf(&c->arena, "%s/tokenizer.json", dir);
        uint64_t    hash = 0;
        bool        is_there;
        TRY(file_exists(path, &is_there));
        if (is_there) TRY(file_hash_parts(NULL, path, &hash));
        FAIL_IF(first && hash && first != hash, ERR_INVALID,
                "%s has another tokenizer.json than the adapters before it: expected adapters of one tokenizer", dir);
        if (!first && hash) TRY(hf_copy_side_files(dir, folder));
        if (!first) first = hash;
    }
    return OK;
}

static void close_parts(Combiner *c)
{
    for (int p = 0; p < c->count && c->files; p++) st_close(c->files[p]);
    arena_deinit(&c->arena);
}

Status peft_combine(const WeightedAdapter *parts, int count, const char *folder)
{
    SCOPED(close_parts) Combiner c = {.parts = parts, .count = count};
    TRY(open_parts(&c));
    StDecl *decls = arena_array(&c.arena, StDecl, 2 * c.num_modules + 1);
    Writing writing = {&c, decls};
    TRY(declare(&c, decls));
    TRY(file_make_dirs(folder));
    TRY(copy_tokenizer(&c, folder));
    TRY(st_write_folder(folder, "adapter_model", decls, 2 * (size_t)c.num_modules, INT64_MAX, append_half, &writing));
    return write_config(&c, folder);
}
