/* Rank 0 serves all connections concurrently from one loop, with a time limit for each connection, so that a silent rank doesn't delay the
 * others. A failure is sent to all ranks that have connected, and for LINGER_SECONDS to ranks that connect late. */
#include "comm/meet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SPARE_FILES = 256, LEAST_SECRET = 16, MOST_GUESTS = 2 * COMM_MOST_RANKS + 64 };
#define GUEST_SECONDS 5.0  /* time that a connection has to prove that it knows the secret */
#define LINGER_SECONDS 1.5 /* after a failure: how long ranks that connect are still told of it */

typedef struct Guest {
    int           fd;
    bool          has_hello, is_in; /* is_in: its proof was accepted, and its socket is in the table */
    size_t        got;              /* bytes received of the next message */
    uint8_t       bytes[sizeof(WireHello)];
    double        until;
    WireHello     hello;
    WireChallenge challenge;
} Guest;

typedef struct Host {
    const CommMeeting *meeting;
    MeetSockets       *sockets;
    Guest             *guests;
    int                num_guests, num_in;
    Status             failure; /* why the meeting failed; OK: it didn't */
    char               why[512];
    double             failed_at;
} Host;

/* ---- sockets ---- */

static void name_place(const CommMeeting *meeting, char *out, size_t size)
{
    snprintf(out, size, "%s:%d", meeting->host, meeting->port);
}

static Status find_address(const CommMeeting *meeting, struct addrinfo **out)
{
    char            port[16];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    snprintf(port, sizeof port, "%d", meeting->port);
    int error = getaddrinfo(meeting->host, port, &hints, out);
    FAIL_IF(error, ERR_INVALID, "rendezvous: %s isn't a host that is known: %s", meeting->host, gai_strerror(error));
    return OK;
}

static void set_up(int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
}

/* Raises this process's limit of open files to `files` (0: to twice the limit), but not above its hard limit. False: the limit stays. */
static bool raise_limit(rlim_t files)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
    if (!files) files = 2 * limit.rlim_cur;
    if (limit.rlim_cur >= files || limit.rlim_cur >= limit.rlim_max) return false;
    limit.rlim_cur = files < limit.rlim_max ? files : limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

static bool is_short_of_files(int error)
{
    return error == EMFILE || error == ENFILE;
}

/* Writes why no further socket can be opened, for a message. */
static void tell_limit(int error, char *out, size_t size)
{
    struct rlimit limit = {0};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    if (error == EMFILE)
        snprintf(out, size, "%s: this process may have %llu, and no more (ulimit -Hn)", strerror(error),
                 (unsigned long long)limit.rlim_cur);
    else
        snprintf(out, size, "%s", strerror(error));
}

static Status listen_at(const CommMeeting *meeting, int *out)
{
    struct addrinfo *address;
    int              one = 1;
    TRY(find_address(meeting, &address));
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    bool ok = fd >= 0 && bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, 1024) == 0;
    int  error = errno;
    freeaddrinfo(address);
    *out = fd;
    if (ok) return OK;
    if (fd >= 0) close(fd);
    FAIL_IF(error == EADDRINUSE, ERR_INVALID, "rendezvous: port %d of %s is in use: name another, the same for all ranks", meeting->port,
            meeting->host);
    FAIL(ERR_INVALID, "rendezvous: cannot listen at %s:%d: %s", meeting->host, meeting->port, strerror(error));
}

static bool send_whole(int fd, const void *data, size_t size)
{
    return send(fd, data, size, MSG_NOSIGNAL) == (ssize_t)size; /* the message is small and the buffer is empty */
}

static bool draw_nonce(uint8_t nonce[WIRE_NONCE])
{
    return getrandom(nonce, WIRE_NONCE, 0) == WIRE_NONCE;
}

/* ---- rank 0 ---- */

static void tell(const Host *host, Guest *guest, Status status, const char *why)
{
    WireVerdict verdict = {.status = (int32_t)status};
    memcpy(verdict.magic, WIRE_MAGIC, 8);
    snprintf(verdict.why, sizeof verdict.why, "%s", why);
    wire_mac(host->meeting->secret, WIRE_SERVER, &guest->hello, &guest->challenge, &verdict, verdict.mac);
    send_whole(guest->fd, &verdict, sizeof verdict);
}

PRINTF_LIKE(2, 3) static void fail_meeting(Host *host, const char *fmt, ...)
{
    va_list args;
    if (host->failure != OK) return;
    va_start(args, fmt);
    vsnprintf(host->why, sizeof host->why, fmt, args);
    va_end(args);
    host->failure = ERR_INVALID;
    host->failed_at = pulse_now();
    for (int i = 0; i < host->num_guests; i++)
        if (host->guests[i].is_in) tell(host, &host->guests[i], host->failure, host->why);
}

static void drop(Host *host, Guest *guest)
{
    close(guest->fd);
    *guest = host->guests[--host->num_guests];
}

static bool hear_hello(Guest *guest)
{
    if (!wire_hello_read(guest->bytes, &guest->hello)) return false;
    memcpy(guest->challenge.magic, WIRE_MAGIC, 8);
    guest->has_hello = true;
    return draw_nonce(guest->challenge.nonce) && send_whole(guest->fd, &guest->challenge, sizeof guest->challenge);
}

/* Checks a guest's proof and claims. Its socket is added to the table, or the meeting fails. */
static void hear_proof(Host *host, Guest *guest)
{
    const CommMeeting *meeting = host->meeting;
    const WireHello   *hello = &guest->hello;
    uint8_t            mac[SHA256_BYTES];
    wire_mac(meeting->secret, WIRE_CLIENT, hello, &guest->challenge, NULL, mac);
    if (!sha256_equal(mac, guest->bytes))
        fail_meeting(host, "a process that says it is rank %d has another secret than rank 0", hello->rank);
    else if (hello->world_size != meeting->world_size)
        fail_meeting(host, "rank %d has world_size %d, rank 0 has %d: all ranks need the same", hello->rank, hello->world_size,
                     meeting->world_size);
    else if (hello->rank < 1 || hello->rank >= meeting->world_size)
        fail_meeting(host, "a process says it is rank %d; expected 1 to %d", hello->rank, meeting->world_size - 1);
    else if (hello->agreed != meeting->agreed)
        fail_meeting(host, "rank %d runs something else than rank 0: start all ranks from the same program", hello->rank);
    else if (host->sockets->fd[hello->rank][hello->channel] >= 0)
        fail_meeting(host, "two processes say that they are rank %d", hello->rank);
    if (host->failure != OK) {
        tell(host, guest, host->failure, host->why);
        return;
    }
    host->sockets->fd[hello->rank][hello->channel] = guest->fd;
    guest->is_in = true;
    host->num_in++;
    tell(host, guest, OK, "");
}

/* Receives from a guest. False: the caller must drop the guest. */
static bool hear(Host *host, Guest *guest)
{
    size_t  want = guest->has_hello ? sizeof(WireProof) : sizeof(WireHello);
    ssize_t n = recv(guest->fd, guest->bytes + guest->got, want - guest->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n <= 0) return false;
    guest->got += (size_t)n;
    if (guest->got < want) return true;
    guest->got = 0;
    if (!guest->has_hello) return hear_hello(guest);
    hear_proof(host, guest);
    return guest->is_in;
}

/* accept failed because no file descriptor is free; the new connection stays in the queue. Guests without a proof time out and free theirs.
 * If all guests are ranks, no file descriptor will become free, and the meeting fails. */
static void lack_files(Host *host, int error)
{
    char limit[200];
    if (error == EMFILE && raise_limit(0)) return;
    for (int i = 0; i < host->num_guests; i++) {
        if (host->guests[i].is_in) continue;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        return;
    }
    tell_limit(error, limit, sizeof limit);
    fail_meeting(host, "rank 0 has %d of %d connections of ranks, and can't take the next: %s", host->num_in,
                 CHANNEL_COUNT * (host->meeting->world_size - 1), limit);
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

static void accept_guest(Host *host, int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 && is_short_of_files(errno)) lack_files(host, errno);
    if (fd < 0) return;
    if (host->num_guests == MOST_GUESTS) {
        close(fd);
        return;
    }
    set_up(fd);
    host->guests[host->num_guests++] = (Guest){.fd = fd, .until = pulse_now() + GUEST_SECONDS};
}

/* Receives from all guests. A rank whose proof was accepted sends nothing before all ranks are there: if its socket can be read, it has
 * closed the connection. */
static void hear_all(Host *host, const struct pollfd *polls)
{
    for (int i = host->num_guests - 1; i >= 0; i--) {
        Guest *guest = &host->guests[i];
        bool   stays = true;
        if (guest->is_in && polls[i].revents) {
            fail_meeting(host, "rank %d went away before all were there", guest->hello.rank);
            continue;
        }
        if (polls[i].revents) stays = hear(host, guest);
        if (!stays || (!guest->is_in && pulse_now() > guest->until)) drop(host, guest);
    }
}

static void name_missing(Host *host)
{
    char missing[256] = "";
    int  used = 0, count = 0;
    for (int r = 1; r < host->meeting->world_size; r++) {
        if (host->sockets->fd[r][CHANNEL_CONTROL] >= 0 && host->sockets->fd[r][CHANNEL_DATA] >= 0) continue;
        if (used < 200) used += snprintf(missing + used, sizeof missing - (size_t)used, "%s%d", count ? ", " : "", r);
        count++;
    }
    fail_meeting(host, "%d of %d ranks didn't come within %.0f s: %s%s", count, host->meeting->world_size, host->meeting->timeout, missing,
                 used >= 200 ? ", ..." : "");
}

static void serve(Host *host, int listener)
{
    double         until = pulse_now() + host->meeting->timeout;
    struct pollfd *polls = calloc_or_end(MOST_GUESTS + 1, sizeof *polls);
    while (host->num_in < 2 * (host->meeting->world_size - 1) || host->failure != OK) {
        if (host->failure != OK && pulse_now() > host->failed_at + LINGER_SECONDS) break;
        if (pulse_now() > until) name_missing(host);
        for (int i = 0; i < host->num_guests; i++) polls[i] = (struct pollfd){.fd = host->guests[i].fd, .events = POLLIN};
        polls[host->num_guests] = (struct pollfd){.fd = listener, .events = POLLIN};
        if (poll(polls, (nfds_t)host->num_guests + 1, 100) <= 0)
            for (int i = 0; i <= host->num_guests; i++) polls[i].revents = 0;
        bool comes = polls[host->num_guests].revents != 0;
        hear_all(host, polls);
        if (comes) accept_guest(host, listener);
    }
    free(polls);
}

static Status host_meeting(const CommMeeting *meeting, MeetSockets *out)
{
    Host host = {.meeting = meeting, .sockets = out};
    int  listener = meeting->listener;
    bool is_raised = raise_limit(CHANNEL_COUNT * (rlim_t)meeting->world_size + SPARE_FILES);
    (void)is_raised; /* if the limit stays too low, accepting one connection too many fails with a message */
    if (listener <= 0) TRY(listen_at(meeting, &listener));
    host.guests = calloc_or_end(MOST_GUESTS, sizeof *host.guests);
    serve(&host, listener);
    close(listener);
    for (int i = 0; i < host.num_guests; i++) {
        Guest *guest = &host.guests[i];
        if (guest->is_in && guest->hello.channel == CHANNEL_CONTROL && host.failure == OK) tell(&host, guest, OK, "");
        if (!guest->is_in) close(guest->fd);
    }
    free(host.guests);
    FAIL_IF(host.failure != OK, host.failure, "rendezvous at %s:%d: %s", meeting->host, meeting->port, host.why);
    return OK;
}

/* ---- the other ranks ---- */

/* Connects to rank 0; returns the socket. -1: failed; *out_error is errno if no socket could be opened, or 0 if rank 0 can't be reached
 * yet. */
static int connect_to(const struct addrinfo *address, int *out_error)
{
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 && errno == EMFILE && raise_limit(0)) fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *out_error = fd < 0 ? errno : 0;
    if (fd >= 0 && connect(fd, address->ai_addr, address->ai_addrlen) == 0) {
        set_up(fd);
        return fd;
    }
    if (fd >= 0) close(fd);
    return -1;
}

/* Receives `size` bytes. Returns NULL if all of them came, else what went wrong. */
static const char *receive_until(int fd, void *data, size_t size, double until)
{
    for (size_t got = 0; got < size;) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        double        left = until - pulse_now();
        if (left <= 0) return "says nothing";
        if (poll(&poll_fd, 1, (int)(left * 1000) + 1) <= 0) continue;
        ssize_t n = recv(fd, (char *)data + got, size - got, 0);
        if (n <= 0) return "ended the connection";
        got += (size_t)n;
    }
    return NULL;
}

static Status hear_verdict(const CommMeeting *meeting, int fd, const WireHello *hello, const WireChallenge *challenge, double until)
{
    WireVerdict verdict, bytes;
    uint8_t     mac[SHA256_BYTES];
    char        place[300];
    name_place(meeting, place, sizeof place);
    const char *fault = receive_until(fd, &bytes, sizeof bytes, until);
    FAIL_IF(fault, ERR_RANK, "rank 0: rendezvous at %s: it %s before all ranks were there", place, fault);
    wire_mac(meeting->secret, WIRE_SERVER, hello, challenge, &bytes, mac);
    FAIL_IF(!sha256_equal(mac, bytes.mac) || !wire_verdict_read(&bytes, &verdict), ERR_INVALID,
            "rendezvous at %s: rank 0 has another secret than rank %d", place, meeting->rank);
    FAIL_IF(verdict.status != OK, (Status)verdict.status, "rendezvous at %s: %s", place, verdict.why);
    return OK;
}

static Status introduce(const CommMeeting *meeting, int fd, WireHello *hello, WireChallenge *challenge)
{
    WireProof proof;
    char      place[300];
    name_place(meeting, place, sizeof place);
    memcpy(hello->magic, WIRE_MAGIC, 8);
    FAIL_IF(!draw_nonce(hello->nonce), ERR_IO, "rendezvous: the system gives no random numbers: %s", strerror(errno));
    const char *fault = send_whole(fd, hello, sizeof *hello) ? NULL : "ended the connection";
    if (!fault) fault = receive_until(fd, challenge, sizeof *challenge, pulse_now() + GUEST_SECONDS);
    if (!fault && memcmp(challenge->magic, WIRE_MAGIC, 8) != 0) fault = "speaks another protocol";
    FAIL_IF(fault, ERR_INVALID, "rendezvous: what listens at %s isn't rank 0 of this run: it %s", place, fault);
    wire_mac(meeting->secret, WIRE_CLIENT, hello, challenge, NULL, proof.mac);
    FAIL_IF(!send_whole(fd, &proof, sizeof proof), ERR_RANK, "rank 0: rendezvous at %s: it ended the connection", place);
    return hear_verdict(meeting, fd, hello, challenge, pulse_now() + GUEST_SECONDS);
}

static Status reach(const CommMeeting *meeting, double until, int *out)
{
    struct addrinfo *address;
    char             limit[200];
    int              error;
    TRY(find_address(meeting, &address));
    while ((*out = connect_to(address, &error)) < 0 && !is_short_of_files(error) && pulse_now() < until)
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    freeaddrinfo(address);
    if (is_short_of_files(error)) {
        tell_limit(error, limit, sizeof limit);
        FAIL(ERR_INVALID, "rendezvous: rank %d has no socket to reach rank 0 with: %s", meeting->rank, limit);
    }
    FAIL_IF(*out < 0, ERR_INVALID, "rank 0: nobody listened at %s:%d within %.0f s: is rank 0 running, and is the address right?",
            meeting->host, meeting->port, meeting->timeout);
    return OK;
}

static Status visit_meeting(const CommMeeting *meeting, MeetSockets *out)
{
    double        until = pulse_now() + meeting->timeout;
    WireHello     hello[CHANNEL_COUNT];
    WireChallenge challenge[CHANNEL_COUNT];
    for (int c = 0; c < CHANNEL_COUNT; c++) {
        hello[c] = (WireHello){.rank = meeting->rank, .world_size = meeting->world_size, .channel = c, .agreed = meeting->agreed};
        TRY(reach(meeting, until, &out->fd[0][c]));
        TRY(introduce(meeting, out->fd[0][c], &hello[c], &challenge[c]));
    }
    return hear_verdict(meeting, out->fd[0][CHANNEL_CONTROL], &hello[CHANNEL_CONTROL], &challenge[CHANNEL_CONTROL],
                        until + 2 * GUEST_SECONDS);
}

static Status check_meeting(const CommMeeting *meeting)
{
    FAIL_IF(meeting->world_size < 1 || meeting->world_size > COMM_MOST_RANKS, ERR_INVALID, "world_size is %d, expected 1 to %d",
            meeting->world_size, COMM_MOST_RANKS);
    FAIL_IF(meeting->rank < 0 || meeting->rank >= meeting->world_size, ERR_INVALID, "rank is %d, expected 0 to world_size - 1, which is %d",
            meeting->rank, meeting->world_size - 1);
    FAIL_IF((meeting->port < 1 || meeting->port > 65535) && meeting->listener <= 0, ERR_INVALID, "rendezvous: port %d, expected 1 to 65535",
            meeting->port);
    FAIL_IF(!meeting->secret || strlen(meeting->secret) < LEAST_SECRET, ERR_INVALID,
            "rendezvous: ranks need a secret of at least %d characters, the same for all: in a file, or in %s", LEAST_SECRET,
            COMM_SECRET_VARIABLE);
    return OK;
}

Status meet_all(const CommMeeting *given, MeetSockets *out)
{
    CommMeeting meeting = *given;
    if (!meeting.host) meeting.host = "127.0.0.1";
    if (meeting.timeout <= 0) meeting.timeout = 60;
    TRY(check_meeting(&meeting));
    out->fd = calloc_or_end((size_t)meeting.world_size, sizeof *out->fd);
    for (int r = 0; r < meeting.world_size; r++) out->fd[r][0] = out->fd[r][1] = -1;
    Status status = meeting.rank == 0 ? host_meeting(&meeting, out) : visit_meeting(&meeting, out);
    if (status != OK) meet_close(out, meeting.world_size);
    return status;
}

void meet_close(MeetSockets *sockets, int world_size)
{
    for (int r = 0; r < world_size; r++)
        for (int c = 0; c < CHANNEL_COUNT; c++)
            if (sockets->fd[r][c] >= 0) close(sockets->fd[r][c]);
    free(sockets->fd);
    sockets->fd = NULL;
}
