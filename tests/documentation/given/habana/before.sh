# A project that was written for lightning-habana.
git init -q .
cat >train.py <<'PROJECT'
from lightning import Trainer
from lightning_habana import HPUAccelerator
from lightning_habana.pytorch.strategies import HPUDDPStrategy
from lightning_habana.utils.resources import device_count

trainer = Trainer(accelerator=HPUAccelerator(), strategy=HPUDDPStrategy(), devices=device_count())
PROJECT
git add train.py
