/* surogate help completions SHELL: a script that completes verbs, flags, keys of run files and their values. All words in it come from
 * tables; the code around them is for the shell. */
#include "cli/cli.h"

#include "config/options.h"

#include <string.h>

enum { MOST_SECONDS = 3 };

/* seconds: the words that may follow the verb instead of a file. */
typedef struct Verb {
    const char *name, *help;
    const char *seconds[MOST_SECONDS + 1];
    bool        takes_dataset_keys;
    CliFlags    flags;
} Verb;

static const struct {
    const char *verb;
    const char *seconds[MOST_SECONDS + 1];
} seconds_of[] = {
    {"bench", {"ops", "text", "decoder"}},
    {"tokenizer", {"train"}},
    {"help", {"keys", "schema", "completions"}},
};

static const char *const verb_rows[][2] = {
#define COMMAND(id, name, arguments, help) {name, help},
#include "cli/commands.def"
#undef COMMAND
};
enum { NUM_VERBS = sizeof verb_rows / sizeof verb_rows[0] };

/* Whether the verb takes the key. A verb for datasets takes dataset keys too; a name in both scopes counts once. */
static bool key_fits(const Verb *verb, const OptionInfo *option)
{
    if (verb->takes_dataset_keys) return !(option->scope == SCOPE_run && option_find(SCOPE_dataset, option->name));
    return verb->flags.takes_keys && option->scope == SCOPE_run;
}

static bool takes_keys(const Verb *verb)
{
    return verb->flags.takes_keys || verb->takes_dataset_keys;
}

static Status find_verb(Arena *arena, int index, Verb *out)
{
    *out = (Verb){.name = verb_rows[index][0], .help = verb_rows[index][1]};
    out->takes_dataset_keys = strcmp(out->name, "inspect") == 0;
    for (size_t i = 0; i < sizeof seconds_of / sizeof *seconds_of; i++)
        if (strcmp(seconds_of[i].verb, out->name) == 0) memcpy(out->seconds, seconds_of[i].seconds, sizeof out->seconds);
    TRY(cli_flags(arena, out->name, NULL, &out->flags));
    for (int i = 0; out->seconds[i]; i++) TRY(cli_flags(arena, out->name, out->seconds[i], &out->flags));
    const Flag common[] = {{"--help", FLAG_SWITCH, NULL, NULL, "what the command takes"},
                           {"--config", FLAG_TEXT, NULL, "FILE", "the run file"},
                           {CONFIG_ALLOW_PYTHON, FLAG_SWITCH, NULL, NULL, "a model in Python may be run"}};
    size_t     count = out->flags.takes_keys ? 3 : 1;
    Flag      *flags = arena_array(arena, Flag, out->flags.count + count);
    if (out->flags.count) memcpy(flags, out->flags.flags, out->flags.count * sizeof *flags);
    memcpy(flags + out->flags.count, common, count * sizeof *flags);
    out->flags.flags = flags;
    out->flags.count += count;
    return OK;
}

/* Appends the possible values of a key, separated by blanks; nothing if any text is possible. */
static void put_values(StrBuf *out, const OptionInfo *option, const char *before)
{
    const char *separator = "";
    if (option->kind == KIND_BOOL) strbuf_printf(out, "%strue %sfalse", before, before);
    for (size_t i = 0; option->limits.words && i < num_choices; i++) {
        if (choices[i].is_spelling || strcmp(choices[i].set, option->limits.words) != 0) continue;
        strbuf_printf(out, "%s%s%s", separator, before, choices[i].text);
        separator = " ";
    }
}

static bool has_values(const OptionInfo *option)
{
    return option->kind == KIND_BOOL || option->limits.words;
}

/* Whether a dataset key has the name of a run key: the two keys then have the same values. */
static bool is_repeated(int key)
{
    return options[key].scope == SCOPE_dataset && option_find(SCOPE_run, options[key].name);
}

static void put_seconds(StrBuf *out, const Verb *verb)
{
    for (int i = 0; verb->seconds[i]; i++) strbuf_printf(out, "%s%s", i ? " " : "", verb->seconds[i]);
    for (int i = 0; i < NUM_VERBS && strcmp(verb->name, "help") == 0; i++) strbuf_printf(out, " %s", verb_rows[i][0]);
}

/* Appends the first sentence of a text for use in single quotes: `quote` and `backslash` replace these characters. */
static void put_text(StrBuf *out, const char *text, const char *quote, const char *backslash)
{
    const char *end = strstr(text, ". ");
    size_t      len = end ? (size_t)(end - text) : strlen(text);
    while (len > 0 && text[len - 1] == '.') len--;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\'')
            strbuf_puts(out, quote);
        else if (text[i] == '\\')
            strbuf_puts(out, backslash);
        else
            strbuf_putc(out, text[i]);
    }
}

static void put_flags(StrBuf *out, const Verb *verb, bool only_valued)
{
    const char *separator = "";
    for (size_t i = 0; i < verb->flags.count; i++) {
        const Flag *flag = &verb->flags.flags[i];
        if (only_valued && flag->kind == FLAG_SWITCH) continue;
        strbuf_printf(out, "%s%s", separator, flag->name);
        separator = " ";
    }
}

static void put_keys(StrBuf *out, const Verb *verb)
{
    const char *separator = "";
    for (int key = 0; key < CONFIG_KEY_COUNT; key++) {
        if (!key_fits(verb, &options[key])) continue;
        strbuf_printf(out, "%s%s", separator, options[key].name);
        separator = " ";
    }
}

/* Appends lines "    KEY) BEFORE VALUES BEHIND ;;" for a `case` in bash or zsh. */
static void put_value_cases(StrBuf *out, const char *open, const char *before, const char *behind)
{
    for (int key = 0; key < CONFIG_KEY_COUNT; key++) {
        if (!has_values(&options[key]) || is_repeated(key)) continue;
        strbuf_printf(out, "    %s%s) %s", open, options[key].name, before);
        put_values(out, &options[key], "");
        strbuf_printf(out, "%s ;;\n", behind);
    }
}

static void put_bash(StrBuf *out, const Verb *verbs)
{
    strbuf_puts(out, "# Completes surogate's command lines in bash. Written by `surogate help completions bash`.\n"
                     "# shellcheck shell=bash\n\n"
                     "_surogate_values() { # KEY: the words that it may be\n    case $1 in\n");
    put_value_cases(out, "", "echo '", "'");
    strbuf_puts(out, "    esac\n}\n\n_surogate_verbs() {\n    echo '");
    for (int i = 0; i < NUM_VERBS; i++) strbuf_printf(out, "%s%s", i ? " " : "", verbs[i].name);
    strbuf_puts(out, "'\n}\n\n_surogate_verb() { # VERB: what it takes\n    case $1 in\n");
    for (int i = 0; i < NUM_VERBS; i++) {
        strbuf_printf(out, "    %s)\n        flags='", verbs[i].name);
        put_flags(out, &verbs[i], false);
        strbuf_puts(out, "' valued='");
        put_flags(out, &verbs[i], true);
        strbuf_puts(out, "'\n        seconds='");
        put_seconds(out, &verbs[i]);
        strbuf_puts(out, "'\n        keys='");
        put_keys(out, &verbs[i]);
        strbuf_puts(out, "' ;;\n");
    }
    strbuf_puts(out, "    esac\n}\n\n");
    strbuf_puts(out, "_surogate() {\n"
                     "    local at=$COMP_CWORD current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
                     "    local flags='' valued='' seconds='' keys='' key='' before='' words=''\n"
                     "    COMPREPLY=()\n"
                     "    if ((at == 1)); then\n"
                     "        mapfile -t COMPREPLY < <(compgen -W \"$(_surogate_verbs)\" -- \"$current\")\n"
                     "        return 0\n"
                     "    fi\n"
                     "    _surogate_verb \"${COMP_WORDS[1]}\"\n"
                     "    # bash makes three words of key=value, unless COMP_WORDBREAKS has no =\n"
                     "    if [[ $current == = ]]; then\n"
                     "        key=$previous current=''\n"
                     "    elif [[ $previous == = ]]; then\n"
                     "        key=${COMP_WORDS[at - 2]}\n"
                     "    elif [[ $current == *=* ]]; then\n"
                     "        key=${current%%=*} before=${current%%=*}= current=${current#*=}\n"
                     "    fi\n"
                     "    if [[ $key ]]; then\n"
                     "        [[ \" $keys \" != *\" $key \"* ]] || words=$(_surogate_values \"$key\")\n"
                     "    elif [[ \" $valued \" == *\" $previous \"* ]]; then\n"
                     "        return 0\n"
                     "    elif [[ $current == -* ]]; then\n"
                     "        words=$flags\n"
                     "    elif ((at == 2)) && [[ $seconds ]]; then\n"
                     "        words=$seconds\n"
                     "    elif [[ \"${COMP_WORDS[1]} $previous\" == 'help completions' ]]; then\n"
                     "        words='bash zsh fish'\n"
                     "    elif [[ \"${COMP_WORDS[1]} ${COMP_WORDS[2]}\" == 'help keys' ]]; then\n"
                     "        _surogate_verb sft\n"
                     "        words=$keys\n"
                     "    elif ((at > 2)) || { [[ $current ]] && ! compgen -f -- \"$current\" > /dev/null; }; then\n"
                     "        mapfile -t COMPREPLY < <(compgen -S = -W \"$keys\" -- \"$current\")\n"
                     "        ((${#COMPREPLY[@]} == 0)) || compopt -o nospace 2> /dev/null\n"
                     "        return 0\n"
                     "    fi\n"
                     "    mapfile -t COMPREPLY < <(compgen -P \"$before\" -W \"$words\" -- \"$current\")\n"
                     "}\n\n"
                     "complete -o default -F _surogate surogate\n");
}

/* Appends "'NAME:TEXT'", the form that _describe takes. */
static void put_zsh_item(StrBuf *out, const char *name, const char *help)
{
    strbuf_printf(out, "        '%s:", name);
    put_text(out, help, "'\\''", "\\");
    strbuf_puts(out, "'\n");
}

static void put_zsh_verb(StrBuf *out, const Verb *verb)
{
    strbuf_printf(out, "    (%s)\n        valued=(", verb->name);
    put_flags(out, verb, true);
    strbuf_puts(out, ")\n        seconds=(");
    put_seconds(out, verb);
    strbuf_puts(out, ")\n        flags=(\n");
    for (size_t i = 0; i < verb->flags.count; i++) put_zsh_item(out, verb->flags.flags[i].name, verb->flags.flags[i].help);
    strbuf_printf(out, "        )\n        keys=(%s%s) ;;\n", takes_keys(verb) ? "$run_keys" : "",
                  verb->takes_dataset_keys ? " $dataset_keys" : "");
}

static void put_zsh_keys(StrBuf *out, OptionScope scope)
{
    for (int key = 0; key < CONFIG_KEY_COUNT; key++)
        if (options[key].scope == scope && !is_repeated(key)) put_zsh_item(out, options[key].name, options[key].help);
}

static void put_zsh(StrBuf *out, const Verb *verbs)
{
    strbuf_puts(out, "#compdef surogate\n# Completes surogate's command lines in zsh. Written by `surogate help completions zsh`.\n\n"
                     "_surogate_values() { # KEY: the words that it may be, or files\n    local -a values\n    case $1 in\n");
    put_value_cases(out, "(", "values=(", ")");
    strbuf_puts(out, "    esac\n    if (( $#values )); then compadd -a values; else _files; fi\n}\n\n"
                     "_surogate() {\n    local -a verbs flags valued seconds keys run_keys dataset_keys\n    verbs=(\n");
    for (int i = 0; i < NUM_VERBS; i++) put_zsh_item(out, verbs[i].name, verbs[i].help);
    strbuf_puts(out, "    )\n    run_keys=(\n");
    put_zsh_keys(out, SCOPE_run);
    strbuf_puts(out, "    )\n    dataset_keys=(\n");
    put_zsh_keys(out, SCOPE_dataset);
    strbuf_puts(out, "    )\n"
                     "    if (( CURRENT == 2 )); then\n        _describe command verbs\n        return\n    fi\n    case $words[2] in\n");
    for (int i = 0; i < NUM_VERBS; i++) put_zsh_verb(out, &verbs[i]);
    strbuf_puts(out, "    esac\n"
                     "    if (( ${valued[(Ie)$words[CURRENT-1]]} )); then\n        _files\n"
                     "    elif [[ $PREFIX == -* ]]; then\n        _describe -o option flags\n"
                     "    elif [[ $words[2] == help && $words[CURRENT-1] == completions ]]; then\n        compadd bash zsh fish\n"
                     "    elif [[ $words[2] == help && $words[3] == keys && CURRENT -gt 3 ]]; then\n        _describe key run_keys\n"
                     "    elif compset -P '*='; then\n        _surogate_values ${IPREFIX%=}\n"
                     "    else\n"
                     "        (( CURRENT != 3 || ! $#seconds )) || compadd -a seconds\n"
                     "        (( ! $#keys )) || _describe key keys -qS =\n"
                     "        _files\n"
                     "    fi\n}\n\n"
                     "if [[ $funcstack[1] == _surogate ]]; then _surogate \"$@\"; else compdef _surogate surogate; fi\n");
}

static void put_fish_text(StrBuf *out, const char *help)
{
    strbuf_puts(out, " -d '");
    put_text(out, help, "\\'", "\\\\");
    strbuf_puts(out, "'\n");
}

static void put_fish_verb(StrBuf *out, const Verb *verb)
{
    strbuf_printf(out, "\ncomplete -c surogate -n __surogate_first -f -a %s", verb->name);
    put_fish_text(out, verb->help);
    if (verb->seconds[0]) {
        strbuf_printf(out, "complete -c surogate -n '__surogate_second %s' -a '", verb->name);
        put_seconds(out, verb);
        strbuf_puts(out, "'\n");
    }
    for (size_t i = 0; i < verb->flags.count; i++) {
        const Flag *flag = &verb->flags.flags[i];
        strbuf_printf(out, "complete -c surogate -n '__surogate_verb %s' -l %s%s", verb->name, flag->name + 2,
                      flag->kind == FLAG_SWITCH ? "" : " -r");
        put_fish_text(out, flag->help);
    }
}

/* Appends completions for key=, then key=VALUE for each value. */
static void put_fish_key(StrBuf *out, const Verb *verbs, const OptionInfo *option)
{
    StrBuf names = {0}, before = {0};
    for (int i = 0; i < NUM_VERBS; i++)
        if (key_fits(&verbs[i], option)) strbuf_printf(&names, " %s", verbs[i].name);
    strbuf_printf(&before, "%s=", option->name);
    strbuf_printf(out, "complete -c surogate -n '__surogate_verb%s' -a '%s", names.data, before.data);
    if (has_values(option)) strbuf_putc(out, ' ');
    put_values(out, option, before.data);
    strbuf_putc(out, '\'');
    put_fish_text(out, option->help);
    strbuf_deinit(&names);
    strbuf_deinit(&before);
}

static void put_chosen(StrBuf *out)
{
    const char *separator = "";
    for (int key = 0; key < CONFIG_KEY_COUNT; key++) {
        if (!has_values(&options[key]) || is_repeated(key)) continue;
        strbuf_printf(out, "%s%s", separator, options[key].name);
        separator = "|";
    }
}

static void put_fish(StrBuf *out, const Verb *verbs)
{
    strbuf_puts(out, "# Completes surogate's command lines in fish. Written by `surogate help completions fish`.\n\n"
                     "function __surogate_first\n    test (count (commandline -opc)) -eq 1\nend\n\n"
                     "function __surogate_verb # VERB...: the command line's is one of them\n"
                     "    set -l words (commandline -opc)\n    test (count $words) -ge 2; and contains -- $words[2] $argv\nend\n\n"
                     "function __surogate_second # VERB: the next word stands right behind it\n"
                     "    test (count (commandline -opc)) -eq 2; and __surogate_verb $argv\nend\n\n"
                     "function __surogate_help # TOPIC: the next word stands behind `help TOPIC`\n"
                     "    set -l words (commandline -opc)\n"
                     "    test (count $words) -ge 3; and test \"$words[2] $words[3]\" = \"help $argv\"\nend\n\n"
                     "function __surogate_chosen # a key that is one of a few words is no file\n    string match -qr '^(");
    put_chosen(out);
    strbuf_puts(out, ")=' -- (commandline -ct)\nend\ncomplete -c surogate -n __surogate_chosen -f\n");
    for (int i = 0; i < NUM_VERBS; i++) put_fish_verb(out, &verbs[i]);
    strbuf_puts(out, "\ncomplete -c surogate -n '__surogate_help completions' -f -a 'bash zsh fish'\n");
    strbuf_puts(out, "complete -c surogate -n '__surogate_help keys' -f -a '");
    for (int key = 0; key < CONFIG_KEY_COUNT; key++)
        if (options[key].scope == SCOPE_run) strbuf_printf(out, "%s%s", key ? " " : "", options[key].name);
    strbuf_puts(out, "'\n\n");
    for (int key = 0; key < CONFIG_KEY_COUNT; key++) put_fish_key(out, verbs, &options[key]);
}

Status cli_completions(const char *shell, StrBuf *out)
{
    static const char *const names[] = {"bash", "zsh", "fish"};
    static void (*const writers[])(StrBuf *, const Verb *) = {put_bash, put_zsh, put_fish};
    int    index;
    Arena  arena = {0};
    Verb   verbs[NUM_VERBS];
    Status status = find_name("completion for the shell", shell, names, 3, &index);
    for (int i = 0; i < NUM_VERBS && status == OK; i++) status = find_verb(&arena, i, &verbs[i]);
    if (status == OK) writers[index](out, verbs);
    arena_deinit(&arena);
    return status;
}
