/* See model_card.h. The last line of a card contains a hash of the text before it, so that an edited card is recognized. */
#include "train/model_card.h"

#include "base/hash.h"
#include "base/version.h"
#include "config/options.h"
#include "files/file.h"
#include "files/hub.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define SEAL "<!-- surogate model card "
enum { MAX_README_BYTES = 16 << 20 };

/* Whether the text is a name on the hub, "org/name": one slash, and no such path on this machine. */
static bool is_hub_name(const char *text)
{
    const char *slash = text ? strchr(text, '/') : NULL;
    bool        there = false;
    if (!slash || slash == text || !slash[1] || strchr(slash + 1, '/') || text[0] == '.' || text[0] == '~') return false;
    for (const char *at = text; *at; at++)
        if (!isalnum((unsigned char)*at) && !strchr("/._-", *at)) return false;
    if (file_exists(text, &there) != OK) status_clear();
    return !there;
}

/* The name that the card shows for a path: a hub name without its revision, the hub name of a cache folder, else the path's last component.
 */
static const char *shown(Arena *arena, const char *path)
{
    char *name = arena_strdup(arena, path), *at = strrchr(name, '@');
    if (at && strchr(name, '/')) *at = 0;
    if (is_hub_name(name)) return name;
    if (hub_snapshot_repo(arena, path)) return hub_snapshot_repo(arena, path);
    for (size_t len = strlen(path); len > 1 && path[len - 1] == '/'; len--) path = arena_strndup(arena, path, len - 1);
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* ---- metadata ---- */

static void put_datasets(Arena *arena, const DatasetList *list, StrBuf *out)
{
    bool any = false;
    for (size_t i = 0; i < list->count; i++) {
        const char *name = shown(arena, list->items[i].path);
        if (!is_hub_name(name)) continue;
        strbuf_printf(out, "%s- %s\n", any ? "" : "datasets:\n", name);
        any = true;
    }
}

static void put_metadata(Arena *arena, const Config *c, StrBuf *out)
{
    const char *base = shown(arena, c->model);
    strbuf_printf(out, "---\nlibrary_name: %s\npipeline_tag: text-generation\n", c->lora ? "peft" : "transformers");
    if (!c->from_scratch && is_hub_name(base))
        strbuf_printf(out, "base_model: %s\nbase_model_relation: %s\n", base, c->lora ? "adapter" : "finetune");
    put_datasets(arena, &c->datasets, out);
    strbuf_printf(out, "tags:\n- surogate\n%s---\n\n", c->lora ? "- lora\n" : "");
}

/* ---- text ---- */

static void put_names(Arena *arena, const DatasetList *list, StrBuf *out)
{
    for (size_t i = 0; i < list->count; i++) strbuf_printf(out, "%s%s", i ? ", " : "", shown(arena, list->items[i].path));
}

static void put_loss(const char *name, int64_t step, double loss, StrBuf *out)
{
    if (isfinite(loss)) strbuf_printf(out, "| %s | %.4f, at step %lld |\n", name, loss, (long long)step);
}

static void put_results(Arena *arena, const CardFacts *f, StrBuf *out)
{
    const History      *h = f->history;
    const HistoryPoint *step = &h->steps.last, *eval = &h->evals.last;
    const Config       *c = f->config;
    strbuf_puts(out, "| | |\n|---|---|\n");
    strbuf_printf(out, "| %s | %s (%s) |\n", c->from_scratch ? "architecture of" : "base model", shown(arena, c->model), f->architecture);
    strbuf_puts(out, "| training data | ");
    put_names(arena, &c->datasets, out);
    strbuf_puts(out, " |\n");
    if (c->validation_datasets.count) {
        strbuf_puts(out, "| evaluation data | ");
        put_names(arena, &c->validation_datasets, out);
        strbuf_puts(out, " |\n");
    }
    if (h->steps.seen > 0) {
        strbuf_printf(out, "| steps | %lld |\n| tokens read | %.0f, of which %.0f carry loss |\n", (long long)step->step,
                      step->total_tokens, step->total_trained);
        put_loss("training loss", step->step, step->loss, out);
    }
    if (h->evals.seen > 0) put_loss("evaluation loss", eval->step, eval->loss, out);
    if (h->trend.best_step && h->trend.best_step != eval->step) put_loss("best evaluation loss", h->trend.best_step, h->trend.best, out);
    strbuf_printf(out, "| these weights | of step %lld |\n", (long long)f->held_step);
    strbuf_printf(out, "| trained with | surogate %s |\n", SUROGATE_VERSION);
}

/* Whether the key was given, affects the result, and isn't a list of datasets. */
static bool is_told(const Config *c, int key)
{
    const OptionInfo *option = &options[key];
    return option->scope == SCOPE_run && option->effect == EFFECT_RESULT && c->origin[key] && option->kind != KIND_DATASETS;
}

static void put_settings(const Config *c, StrBuf *out)
{
    strbuf_puts(out, "\n## Settings\n\nThose that were given and decide the result:\n\n```yaml\n");
    for (int key = 0; key < CONFIG_KEY_COUNT; key++) {
        StrBuf value = {0};
        if (is_told(c, key)) config_print_value(&value, &options[key], (const char *)c + options[key].offset);
        bool names_file = options[key].kind == KIND_STRING && value.len && strpbrk(value.data, "/\n");
        if (value.len && !names_file) strbuf_printf(out, "%s: %s\n", options[key].name, value.data);
        strbuf_deinit(&value);
    }
    strbuf_puts(out, "```\n");
}

/* The run's name, else a title from the model's name. It doesn't use the folder's name, so that the same run has the same card anywhere. */
static const char *title_of(Arena *arena, const Config *c)
{
    const char *model = shown(arena, c->model), *slash = strrchr(model, '/');
    if (c->run_name) return c->run_name;
    if (slash) model = slash + 1;
    return arena_printf(arena, "%s, %s", model, c->lora ? "a LoRA adapter" : c->from_scratch ? "trained from scratch" : "fine-tuned");
}

static void put_card(Arena *arena, const CardFacts *f, StrBuf *out)
{
    const Config *c = f->config;
    put_metadata(arena, c, out);
    strbuf_printf(out, "# %s\n\n", title_of(arena, c));
    put_results(arena, f, out);
    put_settings(c, out);
    strbuf_printf(out, "\n" SEAL "%016llx -->\n", (unsigned long long)hash_bytes(out->data, out->len, 0));
}

/* ---- the file ---- */

/* Whether the card wasn't edited: its last line contains the hash of the text before it. */
static bool is_sealed(Str text)
{
    char        line[64];
    const char *seal = NULL;
    for (const char *at = strstr(text.data, SEAL); at; at = strstr(at + 1, SEAL)) seal = at;
    if (!seal || seal == text.data) return false;
    snprintf(line, sizeof line, SEAL "%016llx -->\n", (unsigned long long)hash_bytes(text.data, (size_t)(seal - text.data) - 1, 0));
    return strcmp(seal, line) == 0;
}

/* Whether a README.md exists, and whether it may be replaced. */
static Status look(Arena *arena, const char *path, bool *out_there, bool *out_may_go)
{
    Str text;
    *out_may_go = true;
    TRY(file_exists(path, out_there));
    if (!*out_there) return OK;
    *out_may_go = false;
    if (file_read(arena, path, MAX_README_BYTES, &text) == OK)
        *out_may_go = is_sealed(text);
    else
        status_clear(); /* a file that can't be read isn't a card */
    return OK;
}

Status model_card_write(const CardFacts *facts, bool *out_stays)
{
    Arena       arena = {0};
    StrBuf      card = {0};
    bool        is_there, may_go;
    const char *path = arena_printf(&arena, "%s/README.md", facts->config->output_dir);
    Status      status = look(&arena, path, &is_there, &may_go);
    *out_stays = status == OK && !may_go;
    if (status == OK && may_go) {
        put_card(&arena, facts, &card);
        status = file_write_atomic(path, card.data, card.len);
    }
    strbuf_deinit(&card);
    arena_deinit(&arena);
    return status;
}

Status model_card_remove(const char *output_dir)
{
    Arena       arena = {0};
    bool        is_there, may_go;
    const char *path = arena_printf(&arena, "%s/README.md", output_dir);
    Status      status = look(&arena, path, &is_there, &may_go);
    if (status == OK && is_there && may_go) status = file_remove_tree(path);
    arena_deinit(&arena);
    return status;
}
