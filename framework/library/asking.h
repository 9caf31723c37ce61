/* Asks the node's agent whether it is worth waiting for memory that a job with a GPU of its own was refused. */
#ifndef CODA_ASKING_H
#define CODA_ASKING_H
#include <stddef.h>
#include <stdint.h>

struct asking {
  int connection, waited; /* waited: the agent has said so at least once */
  uint64_t began_ns, answered_ns;
};

/* Tells the agent of a refusal on the GPU with this PCI bus id ("": not known). 0: nobody may be asked: no agent is
   there, this job is itself a guest, or such a wait has lately been in vain. */
int begin_asking(struct asking *, const char *pci, size_t bytes);

/* Waits for a quarter of a second. 0: there is nothing to wait for any more: the agent says so or is silent, or it took
   too long. */
int keep_asking(struct asking *);

void end_asking(struct asking *, int got_it);
#endif
