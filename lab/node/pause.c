/* The program of a pod's sandbox: it holds the pod's namespaces, reaps orphans, and ends when told to. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number) {
    (void)number;
    _exit(0);
}

static void reap(int number) {
    (void)number;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(void) {
    struct sigaction reaping = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
    signal(SIGINT, end);
    signal(SIGTERM, end);
    sigaction(SIGCHLD, &reaping, NULL);
    for (;;) {
        pause();
    }
}
