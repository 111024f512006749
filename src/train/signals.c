/* See signals.h. The handler only touches lock-free flags and calls _exit and write. */
#include "train/signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static atomic_int   last_signal, is_resumable;
static atomic_llong num_signals;

static void note_signal(int signo)
{
    last_signal = signo;
    num_signals++;
}

static void handle(int signo)
{
    if (!is_resumable || num_signals) {
        static const char stopped[] = "\ninterrupted\n";
        ssize_t           unused = write(STDERR_FILENO, stopped, sizeof stopped - 1);
        (void)unused;
        _exit(128 + signo);
    }
    note_signal(signo);
    static const char note[] = "\nfinishing this step, then saving; once more to stop at once\n";
    ssize_t           ignored = write(STDERR_FILENO, note, sizeof note - 1);
    (void)ignored;
}

void signals_install(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    action.sa_handler = handle;
    action.sa_flags = SA_RESTART;
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        bool is_ignored = sigaction(signals[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN;
        if (!(is_ignored && signals[i] == SIGHUP)) sigaction(signals[i], &action, NULL); /* SIGHUP stays ignored under nohup */
    }
}

void signals_ask(void)
{
    note_signal(SIGINT);
}

void signals_set_resumable(bool resumable)
{
    is_resumable = resumable;
}

int64_t signals_begin(void)
{
    return num_signals;
}

int signals_pending(int64_t begun)
{
    return num_signals != begun ? last_signal : 0;
}
