"""
Stand-ins for the vendor's torch_gcu, for machines without a GCU: they compute on the CPU and refuse what the real one refuses.

t20/ and s60/ hold a package torch_gcu each; with one of them on PYTHONPATH a rank has cards of that generation. They are
written from the vendor's published sources, named beside each rule, and nothing in them was compared with hardware:

    TG1   torch_gcu 1.10.0 of TopsRider t2x, as installed (mango-MilkT/torch_gcu@14a9984)
    TG2   torch_gcu 2.10 of TopsRider i3x (sunnygui-L/torch-gcu@f17a922)
    MZ    the vendor's training scripts (EnflameTechnology/ModelZoo@53f1190)

What the real ones let pass and then do wrongly, as making a process group before taking a device, raises ContractError.
They run on Python 3.8 and torch 1.10, and import nothing but torch and each other.
"""
