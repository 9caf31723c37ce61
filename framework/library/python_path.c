/* Brings the Python half into every Python process, before the interpreter reads its environment.

   A PYTHONPATH in the pod would hide the one in the image. Ours goes in front; the image's and the user's stay. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_python(void) {
  char program[4096];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length < 0) return 0;
  program[length] = 0;
  const char *name = strrchr(program, '/');
  name = name ? name + 1 : program;
  return strncmp(name, "python3", 7) == 0 || strcmp(name, "python") == 0 || strncmp(name, "pypy3", 5) == 0;
}

static int is_first(const char *paths, const char *ours) {
  size_t length = strlen(ours);
  return strncmp(paths, ours, length) == 0 && (paths[length] == 0 || paths[length] == ':');
}

__attribute__((constructor)) static void enter_python(void) {
  const char *ours = getenv("CODA_PYTHON"), *theirs = getenv("PYTHONPATH");
  if (!ours || !*ours || !is_python() || (theirs && is_first(theirs, ours))) return;
  size_t size = strlen(ours) + (theirs ? strlen(theirs) : 0) + 2;
  char *paths = malloc(size);
  if (!paths) return;
  snprintf(paths, size, theirs && *theirs ? "%s:%s" : "%s", ours, theirs ? theirs : "");
  setenv("PYTHONPATH", paths, 1);
  free(paths);
}
