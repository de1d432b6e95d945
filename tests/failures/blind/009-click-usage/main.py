import cli


@cli.command
def main(epochs="10", seed="0", batch_size="32"):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.manual_seed(int(seed))
    for epoch in range(int(epochs)):
        dist.barrier()
    dist.destroy_process_group()


main()
