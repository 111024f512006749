/* Which files of a dataset's folder are read: the files of the split, without files that only tell about the dataset. */
#include "data/record_internal.h"
#include "files/file.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

enum { MOST_NAMED = 5 };

/* ---- files about the dataset ---- */

bool file_is_about(const char *name)
{
    static const char *const texts[] = {"README", "LICENSE", "LICENCE", "COPYING", "NOTICE", "CITATION"};
    static const char *const facts[] = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "config.json"};
    bool                     is_known;
    if (file_format(name, &is_known) != FILE_TEXT) {
        for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
            if (strcmp(name, facts[i]) == 0) return true;
        return false;
    }
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        size_t len = strlen(texts[i]);
        if (strncasecmp(name, texts[i], len) != 0) continue;
        bool is_variant = (name[len] == '-' || name[len] == '_') && strncmp(name, texts[i], len) == 0; /* for example LICENSE-MIT.txt */
        if (name[len] == '.' || is_variant) return true;
    }
    return false;
}

void note_about(StrBuf *notes, const char *dir, const PathList *about)
{
    if (!notes || about->count == 0) return;
    strbuf_printf(notes, "%s: left out, as files about the dataset: ", dir);
    for (int i = 0; i < about->count && i < MOST_NAMED; i++) strbuf_printf(notes, "%s%s", i ? ", " : "", about->paths[i] + strlen(dir) + 1);
    if (about->count > MOST_NAMED) strbuf_printf(notes, " and %d more", about->count - MOST_NAMED);
    strbuf_puts(notes, "; to train on such a file name it as a dataset's path\n");
}

/* ---- words for splits in names ---- */

/* Words for splits in names of files and folders, as on the hub. Words of one row mean the same split. */
static const char *const usual[][5] = {
    {"train", "training"},
    {"validation", "valid", "val", "dev"},
    {"test", "testing", "eval", "evaluation"},
};
enum { TRAIN = 0, NUM_USUAL = sizeof usual / sizeof usual[0], NUM_WORDS = sizeof usual[0] / sizeof usual[0][0] };

/* Is the word in the text, with no letter beside it? */
static bool has_word(const char *text, size_t len, const char *word)
{
    size_t n = strlen(word);
    for (size_t at = 0; at + n <= len; at++) {
        if (strncasecmp(text + at, word, n) != 0) continue;
        bool begins = at == 0 || !isalpha((unsigned char)text[at - 1]), ends = at + n == len || !isalpha((unsigned char)text[at + n]);
        if (begins && ends) return true;
    }
    return false;
}

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The row of `usual` that has a word of the file's own name; -1: none. */
static int split_of_name(const char *name)
{
    for (int i = 0; i < NUM_USUAL; i++)
        for (int k = 0; k < NUM_WORDS && usual[i][k]; k++)
            if (has_word(name, strlen(name), usual[i][k])) return i;
    return -1;
}

static int row_of(const char *split)
{
    for (int i = 0; i < NUM_USUAL; i++)
        for (int k = 0; k < NUM_WORDS && usual[i][k]; k++)
            if (strcasecmp(split, usual[i][k]) == 0) return i;
    return -1;
}

/* Where in its path a file has the word for its split, the surest place first. */
typedef enum Evidence { NAME_BEGINS, NAME_HAS, FOLDER_HAS, NUM_EVIDENCES } Evidence;

/* Whether a file's path shows by `evidence` that the file is of the split. `below`: the path from the dataset's folder on. */
static bool is_of_split(const char *below, const char *split, Evidence evidence)
{
    const char *name = name_of(below);
    if (evidence == NAME_BEGINS) return strncmp(name, split, strlen(split)) == 0;
    if (evidence == NAME_HAS) return has_word(name, strlen(name), split);
    int told = split_of_name(name);
    return has_word(below, (size_t)(name - below), split) && (told < 0 || told == row_of(split));
}

static int count_of_split(const PathList *list, const char *dir, const char *split, Evidence evidence)
{
    int count = 0;
    for (int i = 0; i < list->count; i++) count += is_of_split(list->paths[i] + strlen(dir) + 1, split, evidence);
    return count;
}

/* The word and the evidence that show that some files are of the split; false: nothing shows it. */
static bool find_evidence(const PathList *list, const char *dir, const char *split, const char **out_word, Evidence *out_evidence)
{
    int row = row_of(split);
    for (int k = -1; k < NUM_WORDS; k++) { /* k -1: the word `split` itself */
        *out_word = k < 0 ? split : row < 0 ? NULL : usual[row][k];
        if (!*out_word) return false;
        for (*out_evidence = k < 0 ? NAME_BEGINS : NAME_HAS; *out_evidence < NUM_EVIDENCES; ++*out_evidence)
            if (count_of_split(list, dir, *out_word, *out_evidence) > 0) return true;
    }
    return false;
}

/* The row of `usual` that has a word of the file's own name, or else of its folders' names; -1: none. */
static int split_of_file(const char *below)
{
    int told = split_of_name(name_of(below));
    return told >= 0 ? told : split_of_name(below);
}

static bool begins_with_split(const char *name)
{
    static const char *const words[] = {"train", "test", "validation", "valid", "dev"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strncmp(name, words[i], strlen(words[i])) == 0) return true;
    return false;
}

/* The first file whose path has a word for another split than usual[row]; NULL: none has. */
static const char *first_of_other(const PathList *list, const char *dir, int row)
{
    for (int i = 0; i < list->count; i++) {
        const char *below = list->paths[i] + strlen(dir) + 1;
        int         told = split_of_file(below);
        if (told >= 0 ? told != row : row != TRAIN && begins_with_split(name_of(below))) return below;
    }
    return NULL;
}

/* Does some text file have no word for a split? Then "train" in other files' names may be their subject ("how-to-train.md"). */
static bool has_untold_text(const PathList *list, const char *dir)
{
    bool is_known;
    for (int i = 0; i < list->count; i++)
        if (file_format(list->paths[i], &is_known) == FILE_TEXT && split_of_file(list->paths[i] + strlen(dir) + 1) < 0) return true;
    return false;
}

void note_no_split(StrBuf *notes, const char *path, const char *split, const char *why)
{
    if (notes && split[0] && row_of(split) != TRAIN) strbuf_printf(notes, "warning: %s: no split \"%s\": %s\n", path, split, why);
}

Status keep_split(PathList *list, const char *dir, const char *split, StrBuf *notes)
{
    const char *word, *other = first_of_other(list, dir, row_of(split));
    Evidence    evidence = NAME_BEGINS;
    int         kept = 0, all = list->count;
    bool        is_told = find_evidence(list, dir, split, &word, &evidence), is_train = row_of(split) == TRAIN;
    FAIL_IF(!is_told && other && !is_train, ERR_NOT_FOUND, "%s: no file of split \"%s\": none has the word in its name or its folder's",
            dir, split);
    if (is_train && evidence != NAME_BEGINS) is_told &= other && !has_untold_text(list, dir); /* "train" may be only the default */
    if (!is_told && !other && !is_train)
        note_no_split(notes, dir, split, "no file of the folder tells one by its name; the rows of all are taken");
    if (!is_told && other && notes)
        strbuf_printf(notes,
                      "warning: %s: all %d files are read, %s too: what split each is of isn't told by all names; if they aren't all of "
                      "\"%s\", name those that are by a pattern, as %s/*.jsonl\n",
                      dir, all, other, split, dir);
    if (!is_told) return OK;
    for (int i = 0; i < all; i++)
        if (is_of_split(list->paths[i] + strlen(dir) + 1, word, evidence)) list->paths[kept++] = list->paths[i];
    list->count = kept;
    if (kept < all && notes) strbuf_printf(notes, "%s: %d of %d files are read, those of split \"%s\"\n", dir, kept, all, split);
    return OK;
}
